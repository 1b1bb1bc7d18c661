"""The one error of the benchmarks."""

from __future__ import annotations


class BenchError(Exception):
    """Nothing could be measured; the message says what and why. A missed target is no error."""
