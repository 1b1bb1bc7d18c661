"""Summaries of a few noisy samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from .result import BenchError


class Spread(NamedTuple):
    """Median, quartiles and extremes of samples, in their unit."""

    least: float
    lower: float
    median: float
    upper: float
    most: float

    def quartiles(self, shown: Callable[[float], str]) -> str:
        """The middle half, as text."""
        return f"{shown(self.lower)} to {shown(self.upper)} (quartiles)"

    def extremes(self, shown: Callable[[float], str]) -> str:
        """All samples, as text."""
        return f"{shown(self.least)} to {shown(self.most)} (range)"


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least a share (0 to 1) of the samples does not exceed."""
    if not samples:
        raise BenchError("could not summarise a measurement: there is no sample")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(samples: Sequence[float]) -> Spread:
    """Summarise the samples. Raises BenchError if there are none."""
    least, lower, upper, most = (quantile(samples, share) for share in (0.0, 0.25, 0.75, 1.0))
    return Spread(least, lower, median(samples), upper, most)
