"""Whether the loss still improves: over a given number of steps, and beyond its noise."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

BLOCKS = 16
"""Parts of the window, of each of which the mean is kept."""
_MEAN_BEND = math.sqrt(6.0) * 0.6745
"""Median of |a - 2b + c| of three values of Gaussian noise with standard deviation 1."""
HELD_BLOCKS = 4
"""The least favourable of so many windows, each a block later than the one before, counts."""
CERTAIN_SIGMAS = 2.0
"""An improvement may be larger than it looks by this many standard errors."""
PLATEAU_IMPROVEMENT = 0.005
"""A loss that improves by less than this part of itself in the window stands on a plateau."""


class Plateau:
    """Compares the two halves of the last `steps` steps of a loss; constant memory.

    Steps that a restart repeats do not count. How far the means of neighbouring blocks bend tells the noise,
    whatever the slope.
    """

    def __init__(self, steps: int) -> None:
        self._block_steps = max(1, steps // BLOCKS)
        self.clear()

    def clear(self) -> None:
        """Begin anew: other data, another loss."""
        self.improvement = math.nan
        """At most by this part of itself the loss has become lower within the window; NaN until it is full.
        Negative for a loss that rises."""
        self._means: deque[float] = deque(maxlen=BLOCKS)
        self._found: deque[float] = deque(maxlen=HELD_BLOCKS)
        self._sum, self._values = 0.0, 0
        self._highest = -1
        self._end = -1

    def add(self, value: float, step: int) -> None:
        """Take the loss of a step; one that is not finite is ignored."""
        if step <= self._highest or value - value:
            return
        self._highest = step
        if self._end < 0:
            self._end = step + self._block_steps
        if step >= self._end:
            self._take_block(step)
        self._sum += value
        self._values += 1

    def _take_block(self, step: int) -> None:
        if self._values:
            self._means.append(self._sum / self._values)
        self._sum, self._values = 0.0, 0
        self._end = step + self._block_steps
        if len(self._means) == BLOCKS:
            self._found.append(self._judge())
            if len(self._found) == HELD_BLOCKS:
                self.improvement = max(self._found)

    def _judge(self) -> float:
        means = list(self._means)
        half = BLOCKS // 2
        before, after = (
            sum(means[:half]) / half,
            sum(means[half:]) / half,
        )  # a loss may be as large as it likes
        bends = (abs(a - 2.0 * b + c) for a, b, c in zip(means, means[1:], means[2:], strict=False))
        sigma = median(bends) / _MEAN_BEND
        # The halves lie half a window apart, so a steady fall is twice as large over all of it.
        error = 2.0 * sigma * math.sqrt(2.0 / (BLOCKS // 2))
        level = max(abs(after), 1e-300)
        return (2.0 * (before - after) + CERTAIN_SIGMAS * error) / level
