"""The noise of a loss, however steep its curve and however alike its neighbours."""

from __future__ import annotations

import math
from collections import deque

NEIGHBOUR_WEIGHT = 0.02
"""Weight of a new distance of neighbours: a memory of about 50 steps."""
SWAY_WEIGHT = 0.01
"""Weight of a new sway: a memory of about 100 steps."""
SWAY_SPAN = 10
"""Steps between the three averages whose bend is the sway."""
_MEAN_STEP_OF_NOISE = 2.0 / math.sqrt(math.pi)
"""Mean distance of two values of Gaussian noise with standard deviation 1."""
_MEAN_SWAY_OF_NOISE = 0.604
"""Mean sway of Gaussian noise with standard deviation 1, each step drawn anew, with the recent average of
`rankwatch_agent.training.loss`; from 200,000 draws."""
_LARGEST_SWAY = 4.0
"""A sway beyond this many mean distances of neighbours is taken as that."""


class LossNoise:
    """Standard deviation of the noise from two sides; the larger one counts.

    The distance of neighbours: a slope does not inflate it. But noise that is carried over from step to
    step, as of data in order, makes neighbours alike. So also the sway: how far the recent average bends
    over twenty steps, which a slope does not inflate either.
    """

    def __init__(self) -> None:
        self._distance = 0.0
        self._sway = 0.0
        self._last = math.nan
        self._past: deque[float] = deque(maxlen=2 * SWAY_SPAN)

    @property
    def sigma(self) -> float:
        """The standard deviation, in units of the loss."""
        return max(self._distance / _MEAN_STEP_OF_NOISE, self._sway / _MEAN_SWAY_OF_NOISE)

    def begin(self, value: float) -> None:
        """Take the first value."""
        self._last = value

    def learn(self, value: float, weight: float) -> None:
        """Take a value of the warm-up, with its weight."""
        self._distance += (abs(value - self._last) - self._distance) * weight
        self._last = value

    def follow(self, value: float, limit: float) -> None:
        """Take a value; a distance beyond `limit` counts as that."""
        self._distance += (min(abs(value - self._last), limit) - self._distance) * NEIGHBOUR_WEIGHT
        self._last = value

    def sway(self, recent: float, *, calm: bool) -> None:
        """Take the recent average; learn from it only where the loss is calm."""
        past = self._past
        if calm and len(past) == 2 * SWAY_SPAN:
            bend = abs(recent - 2.0 * past[SWAY_SPAN] + past[0])
            bend = min(bend, _LARGEST_SWAY * self._distance)
            self._sway += (bend - self._sway) * SWAY_WEIGHT
        past.append(recent)
