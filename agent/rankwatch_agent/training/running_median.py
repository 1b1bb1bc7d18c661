"""The median of the last few values, at the cost of one insertion into a short list."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class RunningMedian:
    """The median of the last `span` values.

    A median stays put while fewer than half of them are off, and follows a lasting change after half
    of them: an average would call the steps after a change of level odd for much longer.
    """

    __slots__ = ("_order", "_sorted", "_span")

    def __init__(self, span: int) -> None:
        self._span = span
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def value(self) -> float:
        """The median, of an even number the upper one; raises IndexError while there is no value."""
        return self._sorted[len(self._sorted) // 2]

    def normal(self, least: int) -> float:
        """The median once there are at least so many values, 0 until then."""
        values = self._sorted
        return values[len(values) // 2] if len(values) >= least else 0.0

    def add(self, value: float) -> None:
        """Take a value, and let go of the oldest; it must not be NaN."""
        if len(self._order) == self._span:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)
