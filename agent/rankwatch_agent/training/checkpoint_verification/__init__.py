"""Reads the checkpoints of runs again, in the background, and says which of them are good."""
