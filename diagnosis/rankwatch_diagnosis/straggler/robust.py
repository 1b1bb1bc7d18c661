"""Robust statistics: locations, spreads and windows that single wild values do not move. NaN is a gap."""

from __future__ import annotations

import warnings

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal noise: 1 / quantile(0.75)."""
_HUBER_BOUND = 2.0
"""In standard deviations."""
_LARGEST_LOGARITHM = 100.0
_SHORT = 600
"""Length of an axis below which one sort is faster than NumPy's median, which masks or loops."""
_MOSTLY = 2.0 / 3.0
"""Share of the steps of a stretch that must lie above its level."""


def leave_one_out_median(values: Floats, axis: int) -> Floats:
    """Return for each value the median of the others along the axis, NaN where there is no other.

    A reference that holds the value itself would shrink the difference that is looked for, the more the fewer
    the peers are.
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
    """Estimate the standard deviation by medians: 1.4826 median |x - median x|; 0 for no values."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0
    return float(MAD_TO_SIGMA * np.median(np.abs(finite - np.median(finite))))


def nan_mean(values: Floats, axis: int) -> Floats:
    """Return the mean of the finite values; NaN, without a warning, where there is none."""
    finite = np.isfinite(values)
    count = finite.sum(axis=axis)
    total = np.where(finite, values, 0.0).sum(axis=axis)
    mean: Floats = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
    return mean


def nan_median(values: Floats, axis: int | None = None) -> Floats:
    """Return the median of the values but NaN; NaN, without a warning, where there is none."""
    if axis is None or not 0 < values.shape[axis] < _SHORT:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.asarray(np.nanmedian(values, axis=axis))
    ordered = np.sort(values, axis=axis)  # NaN goes to the end
    count = np.count_nonzero(~np.isnan(values), axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis=axis)
    with np.errstate(invalid="ignore"):
        return np.asarray(((low + high) / 2.0).squeeze(axis))


def steady_mean(values: Floats) -> Floats:
    """Return a mean of the last axis that outliers hardly move: median + mean(clip(x - median, +-2 sigma)).

    This is one step of Huber's estimate. With two standard deviations as the bound it keeps 98 % of the
    efficiency of the mean under normal noise. Of fewer than three values it is the mean.
    """
    if values.shape[-1] < 3:
        return nan_mean(values, axis=-1)
    centre = nan_median(values, axis=-1)
    deviation = values - centre[..., None]
    bound = _HUBER_BOUND * sigma(deviation)
    return centre + nan_mean(np.clip(deviation, -bound, bound), axis=-1)


def finite_exp(logarithm: Floats) -> Floats:
    """Turn logarithms into seconds, clipped to what durations can be: a wild estimate must not overflow."""
    return np.asarray(np.exp(np.clip(logarithm, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)))


def largest_stretch(values: Floats) -> tuple[int, int]:
    """Find start and end of the contiguous stretch of largest sum (Kadane's algorithm by running minima)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    return int(np.argmin(sums[: end + 1])), end


def high_stretch(series: Floats, level: float, least: int) -> tuple[int, int] | None:
    """Find start and end of the stretch of at least `least` steps mostly above the level, or None."""
    above = np.where(np.isfinite(series), np.sign(series - level), 0.0)
    first, end = largest_stretch(above)
    if end - first < least or float(np.mean(above[first:end] > 0.0)) < _MOSTLY:
        return None
    return first, end
