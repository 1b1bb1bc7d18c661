"""Fingerprints of parameters that must be the same on several ranks."""
