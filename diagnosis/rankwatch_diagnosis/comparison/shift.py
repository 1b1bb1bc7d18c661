"""By which factor one set of measurements differs from another, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, median
from typing import NamedTuple

MOST_BLOCKS = 40
"""Neighbouring steps are alike, so they are not independent; medians of long enough blocks nearly are."""
LEAST_BLOCKS = 5
"""Of each run; from fewer no interval excludes "no change"."""
CONFIDENCE = 0.95


class Shift(NamedTuple):
    """A factor: 1.05 is 5 % more than before."""

    factor: float
    low: float
    high: float
    """The factor lies between low and high in CONFIDENCE of all cases."""


def shift_between(before: Sequence[float], after: Sequence[float]) -> Shift | None:
    """The factor from `before` to `after`, positive values in the order in which they were measured.

    Hodges and Lehmann's estimate with its interval (Annals of Mathematical Statistics 34, 1963), on the
    logarithms of the medians of blocks: no distribution is assumed, and outliers do not move it. None if
    either run has fewer than LEAST_BLOCKS values.
    """
    first, second = _block_logarithms(before), _block_logarithms(after)
    if min(len(first), len(second)) < LEAST_BLOCKS:
        return None
    differences = sorted(b - a for a in first for b in second)
    pairs = len(differences)
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    within = z * math.sqrt(pairs * (len(first) + len(second) + 1) / 12)
    lowest = max(0, math.floor(pairs / 2 - within))
    return Shift(
        factor=math.exp(median(differences)),
        low=math.exp(differences[lowest]),
        high=math.exp(differences[pairs - 1 - lowest]),
    )


def _block_logarithms(values: Sequence[float]) -> list[float]:
    """Logarithms of the medians of at most MOST_BLOCKS consecutive blocks of about equal length."""
    usable = [each for each in values if 0.0 < each < math.inf]
    blocks = min(MOST_BLOCKS, len(usable))
    edges = [len(usable) * at // blocks for at in range(blocks + 1)] if blocks else []
    return [math.log(median(usable[begin:end])) for begin, end in pairwise(edges)]
