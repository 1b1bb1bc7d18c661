"""What waits for what in a table of operations, and what a run would have taken otherwise."""
