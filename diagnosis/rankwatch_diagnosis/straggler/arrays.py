"""Grouping and medians over whole columns, without a Python loop over rows."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LARGEST = 2**62
_LARGEST_LOGARITHM = 100.0
_BOUND = 2.0
"""In standard deviations, of a steady mean."""
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal noise: 1 / quantile(0.75)."""


def codes(values: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Distinct values in order, and for each value its index among them."""
    if len(values) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values):
        distinct, inverse = np.unique(values, return_inverse=True)
        return distinct.astype(np.int64), inverse.astype(np.int64)
    # A dense range needs no sort: this is what keeps a million ranks and steps cheap.
    present = np.zeros(high - low + 1, dtype=np.bool_)
    shifted = values.astype(np.int64) - low
    present[shifted] = True
    return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[shifted]


def combine(*columns: tuple[Ints, int]) -> Ints:
    """One number for each combination of codes; each column comes with how many codes it has."""
    key, size = np.zeros(len(columns[0][0]), dtype=np.int64), 1
    for column, count in columns:
        if size * count >= _LARGEST:  # only combinations that occur are counted from here on
            distinct, key = codes(key)
            size = len(distinct)
        key = key * count + column
        size *= count
    return key


def grouped_median(values: Floats, group: Ints, count: int) -> Floats:
    """Median of the values of each group 0..count-1, NaN for an empty one; NaN values are left out."""
    low, high = _middle(values, group, count)
    return (low + high) / 2.0


def grouped_low_median(values: Floats, group: Ints, count: int) -> Floats:
    """The same, but of two values the lower one: what at least half of the group reaches."""
    return _middle(values, group, count)[0]


def _middle(values: Floats, group: Ints, count: int) -> tuple[Floats, Floats]:
    finite = np.isfinite(values)
    if not finite.all():
        values, group = values[finite], group[finite]
    order = np.lexsort((values, group))
    ordered = values[order]
    sizes = np.bincount(group, minlength=count)
    first = np.cumsum(sizes) - sizes
    low, high = np.full(count, np.nan), np.full(count, np.nan)
    filled = sizes > 0
    low[filled] = ordered[first[filled] + (sizes[filled] - 1) // 2]
    high[filled] = ordered[first[filled] + sizes[filled] // 2]
    return low, high


def leave_one_out_median(values: Floats, axis: int) -> Floats:
    """For each value the median of the others along the axis, NaN where there is no other.

    An estimate of what a value ought to be must not hold the value itself: with few peers it would shrink the
    very difference that is looked for.
    """
    moved = np.moveaxis(values, axis, -1)
    order = np.argsort(moved, axis=-1)  # NaN goes to the end
    ordered = np.take_along_axis(moved, order, axis=-1)
    position = np.argsort(order, axis=-1)
    others = np.isfinite(moved).sum(axis=-1, keepdims=True) - np.isfinite(moved)
    low, high = (others - 1) // 2, others // 2
    # Without the value at `position`, everything behind it moves up by one.
    low, high = low + (low >= position), high + (high >= position)
    last = moved.shape[-1] - 1
    middle = np.take_along_axis(ordered, np.clip(low, 0, last), axis=-1)
    middle = (middle + np.take_along_axis(ordered, np.clip(high, 0, last), axis=-1)) / 2.0
    middle[np.broadcast_to(others < 1, middle.shape)] = np.nan
    return np.moveaxis(middle, -1, axis)


def sigma(values: Floats) -> float:
    """Standard deviation by the median absolute deviation from the median; 0 for nothing."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0
    return float(MAD_TO_SIGMA * np.median(np.abs(finite - np.median(finite))))


def nan_mean(values: Floats, axis: int) -> Floats:
    """Mean of what is finite, NaN where nothing is."""
    finite = np.isfinite(values)
    count = finite.sum(axis=axis)
    total = np.where(finite, values, 0.0).sum(axis=axis)
    mean: Floats = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
    return mean


def steady_mean(values: Floats) -> Floats:
    """Mean over the last axis of what lies near its median: what strikes one value must not carry the mean.

    Huber's estimate in one step. With two standard deviations as the bound it keeps 98 % of the efficiency of
    the mean where noise is normal. Of fewer than three values it is the mean.
    """
    if values.shape[-1] < 3:
        return nan_mean(values, axis=-1)
    centre = nan_median(values, axis=-1)
    deviation = values - centre[..., None]
    bound = _BOUND * sigma(deviation)
    return centre + nan_mean(np.clip(deviation, -bound, bound), axis=-1)


def nan_median(values: Floats, axis: int | None = None) -> Floats:
    """np.nanmedian that gives NaN for nothing, and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis))


def finite_exp(logarithm: Floats) -> Floats:
    """Seconds out of their logarithm, within what durations can be: a wild estimate must not overflow."""
    return np.asarray(np.exp(np.clip(logarithm, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)))
