"""Offline diagnosis: which rank, which cause, what it cost. Needs NumPy; the agent never imports it."""
