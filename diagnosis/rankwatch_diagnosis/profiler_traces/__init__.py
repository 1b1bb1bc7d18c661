"""Traces of the PyTorch profiler (Kineto), one file per rank, as a table of operations."""
