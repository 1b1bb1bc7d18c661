"""The steps during which a series lies above a level."""

from __future__ import annotations

import numpy as np

from rankwatch_diagnosis.straggler.arrays import Floats

_MOSTLY = 2.0 / 3.0


def largest_stretch(values: Floats) -> tuple[int, int]:
    """Start and end of the contiguous stretch with the largest sum (Kadane, by running minima)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    return int(np.argmin(sums[: end + 1])), end


def high_stretch(series: Floats, level: float, least: int) -> tuple[int, int] | None:
    """Start and end of the steps that lie above the level, mostly and for long enough; None where none do."""
    above = np.where(np.isfinite(series), np.sign(series - level), 0.0)
    first, end = largest_stretch(above)
    if end - first < least or float(np.mean(above[first:end] > 0.0)) < _MOSTLY:
        return None
    return first, end
