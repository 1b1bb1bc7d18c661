"""Statistics of the loss, on every step: its trend, its noise, spikes, and how far it stands above its trend.

A spike that recovers at once is information; a trend that breaks is an alert. So the trend follows slowly,
and each value pulls it only so far. The deviation is that of an average: one spike moves it a little, a
divergence moves it for good. There are two such averages. The short one shows a break within a few steps. The
long one is compared with the lowest level of the last thousand steps, and shows a drift that is slow enough
to take the trend along.

The agent and `rankwatch diagnose loss` judge by this class.
"""

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
"""Mean sway of Gaussian noise with standard deviation 1, each step drawn anew, with the recent average
below; from 200,000 draws."""
_LARGEST_SWAY = 4.0
"""A sway beyond this many mean distances of neighbours is taken as that."""


class LossNoise:
    """The standard deviation of the noise, estimated in two ways; the larger one counts.

    A slope does not inflate the distance of neighbours. But noise that carries over from step to step, as
    with data in order, makes neighbours alike. So there is also the sway: how far the recent average bends
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


TREND_WEIGHT = 0.02
"""Weight of a value above the trend, and of any value in the long average: a memory of about 50 steps."""
FALL_WEIGHT = 0.1
"""Weight of a value below the trend: it follows a falling loss within about 10 steps. For noise alone the
two weights put the trend about half a standard deviation below the mean."""
RECENT_WEIGHT = 0.2
"""Weight of a new value in the recent average: a memory of about 5 steps. Its own noise is a third
of the loss's (sqrt(w / (2 - w)))."""
LEVEL_WEIGHT = 0.001
"""Weight with which the lowest level gives way to a long average above it: a level that a run was meant to
take (other data, another batch size) is normal after about a thousand steps."""
WARM_UP_STEPS = 20
"""Values before spikes and deviation are judged, at the start of each process."""
SPIKE_SIGMAS = 6.0
"""A value further above the trend than this many standard deviations is a spike."""
DIVERGENCE_SIGMAS = 5.0
"""A deviation above this, if it lasts, is a divergence: the default of `loss_deviation` in the alerts."""
LEVEL_SIGMAS = 4.0
"""The long average this far above the lowest level deviates as much as the recent one DIVERGENCE_SIGMAS
above the trend. It may be lower: noise moves the long average by only a tenth of a sigma."""
PULL_SIGMAS = 3.0
"""A value above pulls the trend up as if it were at most this far away (the averages: 4x), so that
neither a spike nor a divergence drags the trend along. Downwards all follow freely: loss shall fall."""
_RELATIVE_FLOOR = 0.01
"""Noise below a hundredth of the loss is taken as that. A rise of less than 5 % is no divergence, however
smooth the curve: a learning rate that warms up lifts it by so much."""

_LARGEST = 1e300
"""A finite loss beyond is taken as this: distances of two values must not become infinite."""


class LossStatistics:
    """Online statistics of one rank's loss; constant memory."""

    def __init__(self) -> None:
        self.count = 0
        """Finite values seen."""
        self.nonfinite = 0
        self.spikes = 0
        self.trend = math.nan
        """The slow average; of the process before, until this one reports a loss."""
        self.begin_process()

    def begin_process(self) -> None:
        """Forget the trend: a run that goes on from an earlier step has the loss of that step."""
        self.recent = math.nan
        self._since = 0
        self._long = math.nan
        self._level = math.nan
        self._noise = LossNoise()

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, at least a hundredth of the loss."""
        return max(self._noise.sigma, _RELATIVE_FLOOR * abs(self.trend), 1e-12)

    @property
    def warm(self) -> bool:
        """Enough values have been seen to judge the next one."""
        return self._since >= WARM_UP_STEPS

    @property
    def expected(self) -> float:
        """What the loss should be: the trend, or the lowest level where the loss is further above that."""
        return self._level if self._above_level > self.recent - self.trend else self.trend

    @property
    def deviation(self) -> float:
        """How many sigmas the averages stand above trend and level, the further one; NaN in the warm-up."""
        if not self.warm:
            return math.nan
        return max(self.recent - self.trend, self._above_level) / self.sigma

    @property
    def _above_level(self) -> float:
        return (self._long - self._level) * (DIVERGENCE_SIGMAS / LEVEL_SIGMAS)

    def add(self, value: float) -> None:
        """Take the loss of the next step."""
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        value = max(-_LARGEST, min(value, _LARGEST))
        self.count += 1
        self._since += 1
        if self._since == 1:
            self.trend = self.recent = self._long = self._level = value
            self._noise.begin(value)
        elif self._since <= WARM_UP_STEPS:
            self._learn(value)
        else:
            self._follow(value)

    def _learn(self, value: float) -> None:
        weight = 1.0 / self._since  # a plain mean first, so that the start does not linger
        self._noise.learn(value, weight)
        self.trend += (value - self.trend) * max(weight, TREND_WEIGHT)
        self.recent += (value - self.recent) * max(weight, RECENT_WEIGHT)
        self._long = self._level = self.trend

    def _follow(self, value: float) -> None:
        sigma = self.sigma
        excess = value - self.trend
        if excess > SPIKE_SIGMAS * sigma:
            self.spikes += 1
        pull = PULL_SIGMAS * sigma
        far = 4 * pull
        self._noise.follow(value, pull)
        # Comparisons in place of `min`: half the cost, and this is done for each step of each rank.
        self.trend += (excess if excess < pull else pull) * (TREND_WEIGHT if excess > 0 else FALL_WEIGHT)
        above = value - self.recent
        self.recent += (above if above < far else far) * RECENT_WEIGHT
        above = value - self._long
        self._long += (above if above < far else far) * TREND_WEIGHT
        gap = self._long - self._level
        self._level += gap if gap < 0 else gap * LEVEL_WEIGHT
        # Not while it stands high: a divergence must not make its own noise look large.
        self._noise.sway(self.recent, calm=self.deviation <= 0.5 * DIVERGENCE_SIGMAS)
