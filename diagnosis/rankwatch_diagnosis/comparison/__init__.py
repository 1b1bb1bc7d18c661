"""Compares two runs: which figures became worse, by how much, and how certain that is."""
