"""Group-by over whole columns: the primitives of pandas and SQL, under their names, in NumPy.

The columns of a table are arrays of equal length. `ngroup` numbers the groups of its rows; every other
function takes those numbers and reduces or numbers the rows of each group, without a Python loop.
`docs/decisions/0007-group-by-in-numpy.md` compares this with pandas and polars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", bound=np.generic)

_LARGEST_KEY = 2**62


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each row."""

    number: Ints
    """By row: 0 to count - 1."""
    count: int


def factorize(values: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """By row the index of its value among the distinct ones, and the distinct values in ascending order."""
    if len(values) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values):
        distinct, inverse = np.unique(values, return_inverse=True)
        return inverse.astype(np.int64), distinct.astype(np.int64)
    # A dense range needs no sort: this keeps a million ranks and steps cheap.
    present = np.zeros(high - low + 1, dtype=np.bool_)
    shifted = values.astype(np.int64) - low
    present[shifted] = True
    return (np.cumsum(present) - 1)[shifted], np.flatnonzero(present) + low


def ngroup(*keys: NDArray[np.integer]) -> Groups:
    """Groups of rows that agree in all keys, numbered in the order of the sorted keys."""
    number, count = _factorized(keys[0])
    if len(keys) == 1:
        return Groups(number, count)
    for key in keys[1:]:
        code, size = _factorized(key)
        if count * size >= _LARGEST_KEY:  # keep only the combinations that occur
            number, count = _factorized(number)
        number, count = number * size + code, count * size
    return Groups(*_factorized(number))


def grid(*axes: tuple[Ints, int]) -> Groups:
    """The cells of an array of shape (size, ...), flattened; each axis is (index by row, size)."""
    number, count = np.zeros(len(axes[0][0]), dtype=np.int64), 1
    for index, size in axes:
        number, count = number * size + index, count * size
    return Groups(number, count)


def cumcount(key: Ints, order: Ints | None = None) -> Ints:
    """By row: how many rows with the same key come before it, in the order of the rows or the given one."""
    if len(key) == 0:
        return np.empty(0, dtype=np.int64)
    sequence = (
        np.argsort(key, kind="stable") if order is None else order[np.argsort(key[order], kind="stable")]
    )
    ordered = key[sequence]
    begins = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(ordered)), 0))
    number = np.empty(len(key), dtype=np.int64)
    number[sequence] = np.arange(len(ordered)) - first
    return number


def group_size(groups: Groups) -> Ints:
    """By group: its rows."""
    return np.bincount(groups.number, minlength=groups.count)


def group_sum(values: NDArray[np.number], groups: Groups) -> Floats:
    """By group: the sum of its values, 0 for an empty group."""
    return np.bincount(groups.number, weights=values, minlength=groups.count).astype(np.float64)


def group_mean(values: Floats, groups: Groups) -> Floats:
    """By group: the mean of its values, NaN for an empty group."""
    size = group_size(groups)
    mean: Floats = np.divide(
        group_sum(values, groups), size, out=np.full(groups.count, np.nan), where=size > 0
    )
    return mean


def group_min(values: Floats, groups: Groups) -> Floats:
    """By group: its smallest value, infinity for an empty group."""
    smallest = np.full(groups.count, np.inf)
    np.minimum.at(smallest, groups.number, values)
    return smallest


def group_max(values: Floats, groups: Groups) -> Floats:
    """By group: its largest value, minus infinity for an empty group."""
    largest = np.full(groups.count, -np.inf)
    np.maximum.at(largest, groups.number, values)
    return largest


def group_first(values: NDArray[_Scalar], groups: Groups) -> NDArray[_Scalar]:
    """By group: the value of its first row; no group may be empty."""
    first = np.empty(groups.count, dtype=values.dtype)
    first[groups.number[::-1]] = values[::-1]  # of repeated indices the last assignment stays
    return first


def group_median(values: Floats, groups: Groups) -> Floats:
    """By group: the median of its finite values, NaN where there is none."""
    low, high = _middle(values, groups)
    return (low + high) / 2.0


def group_low_median(values: Floats, groups: Groups) -> Floats:
    """The same, but the lower one of two middle values: what at least half of the group reaches."""
    return _middle(values, groups)[0]


def group_low_quantile(values: Floats, groups: Groups, share: float) -> Floats:
    """By group: the value that this share of its rows does not exceed; no NaN and no empty group."""
    order = np.lexsort((values, groups.number))
    size = group_size(groups)
    place = np.cumsum(size) - size + (share * size).astype(np.int64)
    lowest: Floats = values[order][np.minimum(place, len(order) - 1)]
    return lowest


def _factorized(values: NDArray[np.integer]) -> tuple[Ints, int]:
    code, distinct = factorize(values)
    return code, len(distinct)


def _middle(values: Floats, groups: Groups) -> tuple[Floats, Floats]:
    """By group: the two values in the middle, which are one where their number is odd."""
    number = groups.number
    finite = np.isfinite(values)
    if not finite.all():
        values, number = values[finite], number[finite]
    order = np.argsort(values)  # sorting twice is faster than np.lexsort
    ordered = values[order[np.argsort(number[order], kind="stable")]]
    size = np.bincount(number, minlength=groups.count)
    first = np.cumsum(size) - size
    low, high = np.full(groups.count, np.nan), np.full(groups.count, np.nan)
    filled = size > 0
    low[filled] = ordered[first[filled] + (size[filled] - 1) // 2]
    high[filled] = ordered[first[filled] + size[filled] // 2]
    return low, high
