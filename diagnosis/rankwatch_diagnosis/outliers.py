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
    """By step: whether its duration is that of a single event; all steps are usual where many are long."""
    far = _far(seconds)
    found: list[bool] = []
    for long, run in groupby(far):
        length = len(list(run))
        found += [long and length < LEAST_LASTING] * length
    most = max(_ALWAYS_ALLOWED, int(_MOST_SHARE * len(found)))
    return found if sum(found) <= most else [False] * len(found)


def _far(seconds: Sequence[float]) -> list[bool]:
    limit = _RATIO * median(seconds) if seconds else 0.0
    return [each > limit > 0.0 for each in seconds]
