"""What runs cost: prices of GPUs, what is charged to a run, and what it has spent."""
