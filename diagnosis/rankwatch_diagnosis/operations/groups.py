"""Group-by over whole columns: the primitives of pandas and SQL, under their names, in NumPy.

The columns of a table are arrays of equal length. A grouping numbers the groups of its rows once, and then
reduces any column by these numbers, without a Python loop.
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
    """The group of each row. Reductions return one value by group."""

    number: Ints
    """By row: 0 to count - 1."""
    count: int

    @classmethod
    def by(cls, *keys: NDArray[np.integer]) -> Groups:
        """Return the groups of rows that agree in all keys, numbered in the order of the sorted keys."""
        number, distinct = factorize(keys[0])
        count = len(distinct)
        for key in keys[1:]:
            code, distinct = factorize(key)
            if count * len(distinct) >= _LARGEST_KEY:  # keep only the combinations that occur
                number, occurring = factorize(number)
                count = len(occurring)
            number, count = number * len(distinct) + code, count * len(distinct)
        if len(keys) > 1:
            number, distinct = factorize(number)
        return cls(number, len(distinct))

    @classmethod
    def grid(cls, *axes: tuple[Ints, int]) -> Groups:
        """Return the cells of a flattened array of shape (size, ...); each axis is (index by row, size)."""
        number, count = np.zeros(len(axes[0][0]), dtype=np.int64), 1
        for index, size in axes:
            number, count = number * size + index, count * size
        return cls(number, count)

    def parts(self) -> list[Ints]:
        """Return the rows of each group, in their order."""
        return np.split(np.argsort(self.number, kind="stable"), np.cumsum(self.size())[:-1])

    def size(self) -> Ints:
        """Count the rows."""
        return np.bincount(self.number, minlength=self.count)

    def sum(self, values: NDArray[np.number]) -> Floats:
        """Return the sum of the values, 0 for an empty group."""
        return np.bincount(self.number, weights=values, minlength=self.count).astype(np.float64)

    def mean(self, values: Floats) -> Floats:
        """Return the mean of the values, NaN for an empty group."""
        size, mean = self.size(), np.full(self.count, np.nan)
        np.divide(self.sum(values), size, out=mean, where=size > 0)
        return mean

    def min(self, values: NDArray[np.number]) -> Floats:
        """Return the smallest value, infinity for an empty group."""
        smallest = np.full(self.count, np.inf)
        np.minimum.at(smallest, self.number, values)
        return smallest

    def max(self, values: NDArray[np.number]) -> Floats:
        """Return the largest value, minus infinity for an empty group."""
        largest = np.full(self.count, -np.inf)
        np.maximum.at(largest, self.number, values)
        return largest

    def first(self, values: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Return the value of the first row; no group may be empty."""
        first = np.empty(self.count, dtype=values.dtype)
        first[self.number[::-1]] = values[::-1]  # of repeated indices the last assignment stays
        return first

    def median(self, values: NDArray[np.number]) -> Floats:
        """Return the median of the finite values, NaN where there is none."""
        low, high = self._middle(values)
        return (low + high) / 2.0

    def whole_median(self, values: NDArray[np.integer]) -> Ints:
        """Return the median as a whole number: what most rows of a group hold where few differ."""
        return np.rint(self.median(values.astype(np.float64))).astype(np.int64)

    def low_median(self, values: Floats) -> Floats:
        """Do the same with the lower one of two middle values: what at least half of the group reaches."""
        return self._middle(values)[0]

    def low_quantile(self, values: Floats, share: float) -> Floats:
        """Return the value that this share of the rows does not exceed; no NaN and no empty group."""
        order = np.lexsort((values, self.number))
        size = self.size()
        place = np.cumsum(size) - size + (share * size).astype(np.int64)
        lowest: Floats = values[order][np.minimum(place, len(order) - 1)]
        return lowest

    def _middle(self, values: NDArray[np.number]) -> tuple[Floats, Floats]:
        """Return the two values in the middle, which are one where their number is odd."""
        number = self.number
        finite = np.isfinite(values)
        if not finite.all():
            values, number = values[finite], number[finite]
        order = np.argsort(values)  # sorting twice is faster than np.lexsort
        ordered = values[order[np.argsort(number[order], kind="stable")]]
        size = np.bincount(number, minlength=self.count)
        first = np.cumsum(size) - size
        low, high = np.full(self.count, np.nan), np.full(self.count, np.nan)
        filled = size > 0
        low[filled] = ordered[first[filled] + (size[filled] - 1) // 2]
        high[filled] = ordered[first[filled] + size[filled] // 2]
        return low, high


def factorize(values: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Return by row the index of its value among the distinct ones, and these in ascending order."""
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


def cumcount(key: Ints, order: Ints | None = None) -> Ints:
    """Count by row the rows with the same key before it, in the order of the rows or the given one."""
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


def connected(count: int, member: Ints, groups: Groups) -> Ints:
    """Return by member the lowest one that shares a group with it, directly or through others.

    Members are 0 to count - 1; `member` is the one of each row of `groups`.
    """
    label = np.arange(count)
    while member.size:
        before = label.copy()
        np.minimum.at(label, member, groups.min(label[member]).astype(np.int64)[groups.number])
        if (label == before).all():
            break
    return label
