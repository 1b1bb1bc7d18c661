"""Which steps become traces: failed, slow and resumed ones, those of incidents, and one in N of the rest.

All nodes must decide alike without asking each other, because the ranks of a step share one trace. What a
hash of (run, step) chooses, and what fails or resumes, is the same for all. Slow steps are found from the
step's own duration, which in synchronous training is nearly the same on all ranks, by a coarse threshold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from hashlib import blake2b
from itertools import accumulate, repeat
from operator import mul

SPAN_STEPS = 256
"""Steps that show what is normal."""
LEAST_STEPS = 20
"""Steps before the first one is judged."""
QUANTILE = 0.95
LATE_RATIO = 1.25
"""A slow step is also so much longer than the median: without outliers the slowest 5 % are normal."""
_GRID = 2.0**0.25
"""Thresholds are powers of this. Those of two nodes differ only if one lies between the exact ones."""
_POWERS = tuple(accumulate(repeat(_GRID, 220), mul, initial=1e-6))
"""From a microsecond to more than a thousand years."""


def by_chance(cluster: str, run: str, step: int, one_in: int) -> bool:
    """Whether the step is one of the 1 in `one_in` that every node samples; 0 samples none."""
    if one_in <= 1:
        return one_in == 1
    digest = blake2b(f"{cluster}\0{run}\0{step}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") % one_in == 0


class Pace:
    """What is normal for the steps of a run, as one node sees it."""

    __slots__ = ("_order", "_sorted")

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def threshold(self) -> float | None:
        """The duration beyond which a step is slow; None while too few steps are known."""
        durations = self._sorted
        if len(durations) < LEAST_STEPS:
            return None
        p95 = durations[min(len(durations) - 1, int(QUANTILE * len(durations)))]
        return coarse(max(p95, LATE_RATIO * durations[len(durations) // 2]))

    def add(self, seconds: float) -> bool:
        """Take a step, in the order of steps; returns whether it is slow."""
        threshold = self.threshold()
        if len(self._order) == SPAN_STEPS:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(seconds)
        insort(self._sorted, seconds)
        return threshold is not None and seconds > threshold


def coarse(seconds: float) -> float:
    """The next power of 2^(1/4), so that two nodes with nearly the same durations have the same threshold."""
    if seconds <= 0.0:
        return 0.0
    return _POWERS[min(bisect_left(_POWERS, seconds), len(_POWERS) - 1)]
