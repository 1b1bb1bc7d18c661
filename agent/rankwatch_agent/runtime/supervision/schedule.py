"""When collectors run: a schedule that does not drift."""

from __future__ import annotations

import math


def next_start(first: float, interval: float, now: float) -> float:
    """The first moment after `now` on the grid `first + k * interval`.

    A run that took longer than its interval therefore skips starts instead of catching up, and the
    grid never shifts.
    """
    return first + (math.floor((now - first) / interval) + 1) * interval


def stale_after(interval: float, deadline: float) -> float:
    """Age in seconds past which a result is no longer shown: three runs missed, or one that was late."""
    return max(3 * interval, deadline + interval)
