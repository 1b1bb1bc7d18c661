"""What the time of a run was spent on, what that cost, and what would be better."""
