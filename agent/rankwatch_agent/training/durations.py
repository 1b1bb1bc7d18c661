"""The step-duration histogram of a run on this node: one per run, however many ranks it has."""

from __future__ import annotations

import math
from bisect import bisect_left

BOUNDS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""From a 5 ms toy step to one that takes minutes; each about 2.2 times the one before."""


class StepDurations:
    """Counts of step durations by upper bound."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one step."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Cumulative counts by upper bound; the last bound is infinite."""
        total = 0
        found = []
        for bound, count in zip((*BOUNDS_SECONDS, math.inf), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return tuple(found)
