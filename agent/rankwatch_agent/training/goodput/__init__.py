"""What the time of a run's ranks was spent on."""
