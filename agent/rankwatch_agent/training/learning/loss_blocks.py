"""What the means of blocks of losses tell: the noise, what the loss was at each step, whether it still
improves.

Noise may carry over from step to step; means of blocks show that. A run that goes on after a restart must
stand where it stood at the same step.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

MOST_LEVELS = 256
"""Kept means. A longer run keeps one for more steps each."""


class LossHistory:
    """Means of the loss by step, in bounded memory."""

    def __init__(self) -> None:
        self._steps = 8
        """Steps of one mean."""
        self._levels: dict[int, float] = {}
        """Step, in units of `_steps` -> highest mean there, of the last attempt that came by."""
        self._place = -1

    def __len__(self) -> int:
        return len(self._levels)

    def add(self, step: int, mean: float) -> None:
        """Take the mean of a few steps up to this one."""
        place = step // self._steps
        self._levels[place] = max(mean, self._levels.get(place, mean)) if place == self._place else mean
        self._place = place
        if len(self._levels) > MOST_LEVELS:
            self._halve()

    def _halve(self) -> None:
        halved: dict[int, float] = {}
        for at, level in self._levels.items():
            halved[at // 2] = max(level, halved.get(at // 2, level))
        self._levels = halved
        self._steps *= 2
        self._place //= 2

    def clear(self) -> None:
        """Forget all: other data, other losses."""
        self._levels.clear()
        self._place = -1

    def at(self, step: int) -> float:
        """Return the loss at a step, the highest of the means around it; NaN where none is known.

        Beyond the last step the loss should be no higher than it was there. Where the first one lies, it may
        have fallen fast.
        """
        known = sorted(self._levels)
        if len(known) < 2 or step // self._steps <= known[0]:
            return math.nan
        place = min(step // self._steps, known[-1])
        before = max(each for each in known if each <= place)
        after = min((each for each in known if each > place), default=before)
        earlier = max((each for each in known if each < before), default=before)
        return max(self._levels[each] for each in (earlier, before, after))


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
        """Note that values go on elsewhere; their noise probably stays, but new values soon count more."""
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


PLATEAU_BLOCKS = 16
"""Parts of the window, of each of which the mean is kept."""
_MEDIAN_BEND = math.sqrt(6.0) * 0.6745
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
        self._block_steps = max(1, steps // PLATEAU_BLOCKS)
        self.clear()

    def clear(self) -> None:
        """Begin anew: other data, another loss."""
        self.improvement = math.nan
        """At most by this part of itself the loss has become lower within the window; NaN until it is full.
        Negative for a loss that rises."""
        self._means: deque[float] = deque(maxlen=PLATEAU_BLOCKS)
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
        if len(self._means) == PLATEAU_BLOCKS:
            self._found.append(self._judge())
            if len(self._found) == HELD_BLOCKS:
                self.improvement = max(self._found)

    def _judge(self) -> float:
        means = list(self._means)
        half = PLATEAU_BLOCKS // 2
        before, after = (
            sum(means[:half]) / half,
            sum(means[half:]) / half,
        )  # a loss may be as large as it likes
        bends = (abs(a - 2.0 * b + c) for a, b, c in zip(means, means[1:], means[2:], strict=False))
        sigma = median(bends) / _MEDIAN_BEND
        # The halves lie half a window apart, so a steady fall is twice as large over all of it.
        error = 2.0 * sigma * math.sqrt(2.0 / (PLATEAU_BLOCKS // 2))
        level = max(abs(after), 1e-300)
        return (2.0 * (before - after) + CERTAIN_SIGMAS * error) / level
