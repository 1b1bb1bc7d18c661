"""The noise of a loss from the means of blocks of values: also noise that carries over from step to step."""

from __future__ import annotations

import math

BLOCK_STEPS = 8
BLOCKS = 4
"""Short blocks in a long one."""
_MEAN_BEND = math.sqrt(2.0 / math.pi) * math.sqrt(6.0)
"""Mean of |a - 2b + c| of three values of Gaussian noise with standard deviation 1."""
KEPT_BENDS = 4
"""So much the bends of the process before count in the next."""
_LARGEST_BEND = 4.0
"""A bend beyond this many of those that independent noise would have is taken as that."""


class NoiseBlocks:
    """The standard deviation that the means of blocks tell, were the noise independent from step to step.

    Noise that carries over, as with data in order, makes neighbours alike, but not the means of blocks. A
    slope does not change how far the means of three blocks bend.
    """

    def __init__(self, steps: int, memory: int) -> None:
        self.sigma = 0.0
        self._scale = math.sqrt(steps) / _MEAN_BEND
        self._memory = memory
        self._bends = self._means = 0
        self._before = self._last = 0.0

    def begin_process(self) -> None:
        """Values go on elsewhere; their noise is probably what it was, but new values soon count more."""
        self._means = 0
        self._bends = min(self._bends, KEPT_BENDS)

    def add(self, mean: float, sigma: float) -> None:
        """Take the mean of a block; sigma: of the noise, which bounds what one block can say."""
        if self._means == 2:
            bend = abs(self._before - 2.0 * self._last + mean) * self._scale
            bend = min(bend, _LARGEST_BEND * max(sigma, self.sigma))
            self._bends += self._bends < self._memory
            self.sigma += (bend - self.sigma) / self._bends
        else:
            self._means += 1
        self._before, self._last = self._last, mean
