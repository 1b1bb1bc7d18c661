"""What a loss was at each step of a run, across restarts: a run that goes on must stand where it stood."""

from __future__ import annotations

import math

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
        """The loss at a step, the highest of the means around it; NaN where none is known.

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
