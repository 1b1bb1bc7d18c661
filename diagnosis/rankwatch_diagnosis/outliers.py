"""Single steps that take far longer than the usual ones. They are events, and no trend follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

LEAST_LASTING = 4
"""So many such steps in a row are a state of the run, and no longer single events."""
_RATIO = 2.0
"""Of a step over the median one. What is shorter moves a mean of many steps by little."""
_MOST_SHARE = 0.05
"""Of the steps. More of them are a pattern of the run, such as work that comes every few steps."""
_ALWAYS_ALLOWED = 2
"""However few the steps are."""


def outlying(seconds: Sequence[float]) -> list[bool]:
    """Say by step whether its duration is that of a single event.

    Where many steps are twice as long as the median one, as short steps on a busy host are, those are events
    that are 4, 8, 16, ... times as long, if they are few.
    """
    usual = median(seconds) if seconds else 0.0
    most = max(_ALWAYS_ALLOWED, int(_MOST_SHARE * len(seconds)))
    limit = _RATIO * usual
    while usual > 0.0 and limit < max(seconds):
        found = _single([each > limit for each in seconds])
        if sum(found) <= most:
            return found
        limit *= _RATIO
    return [False] * len(seconds)


def _single(far: Sequence[bool]) -> list[bool]:
    """Keep those in short runs alone: what lasts is a state of the run."""
    found: list[bool] = []
    for long, run in groupby(far):
        length = len(list(run))
        found += [long and length < LEAST_LASTING] * length
    return found
