"""Statistics of the loss, on every step: its trend, its noise, spikes, and how far it stands above its trend.

A spike that recovers at once is information; a trend that breaks is an alert. So the trend follows
slowly and takes only a bounded pull from each value, and the deviation is that of a short average:
one spike moves it a little, a divergence moves it for good.
"""

from __future__ import annotations

import math

TREND_WEIGHT = 0.02
"""Weight of a value above the trend: a memory of about 50 steps."""
FALL_WEIGHT = 0.1
"""Weight of a value below the trend: it follows a falling loss within about 10 steps. For noise alone the
two weights put the trend about half a standard deviation below the mean."""
RECENT_WEIGHT = 0.2
"""Weight of a new value in the recent average: a memory of about 5 steps. Its own noise is a third
of the loss's (sqrt(w / (2 - w)))."""
WARM_UP_STEPS = 20
"""Values before spikes and deviation are judged."""
SPIKE_SIGMAS = 6.0
"""A value further above the trend than this many standard deviations is a spike."""
PULL_SIGMAS = 3.0
"""A value above pulls the trend up as if it were at most this far away (the recent average: 4x), so that
neither a spike nor a divergence drags the trend along. Downwards both follow freely: loss shall fall."""
_MEAN_STEP_OF_NOISE = 2.0 / math.sqrt(math.pi)
"""Mean distance of two values of Gaussian noise with standard deviation 1."""
_RELATIVE_FLOOR = 1e-3
"""Noise below a thousandth of the loss is taken as that: a constant loss has no meaningful sigma."""

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
        self._recent = math.nan
        self._noise = 0.0
        self._last = math.nan

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, from the distance of neighbours: a slope does not inflate it."""
        return max(self._noise / _MEAN_STEP_OF_NOISE, _RELATIVE_FLOOR * abs(self.trend), 1e-12)

    @property
    def deviation(self) -> float:
        """How many sigmas the recent average stands above the trend; NaN while it warms up."""
        if self.count < WARM_UP_STEPS:
            return math.nan
        return (self._recent - self.trend) / self.sigma

    def add(self, value: float) -> None:
        """Take the loss of the next step."""
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        value = max(-_LARGEST, min(value, _LARGEST))
        self.count += 1
        if self.count == 1:
            self.trend = self._recent = self._last = value
            return
        sigma = self.sigma
        distance = abs(value - self._last)
        if self.count <= WARM_UP_STEPS:
            weight = 1.0 / self.count  # a plain mean first, so that the start does not linger
            self._noise += (distance - self._noise) * weight
            self.trend += (value - self.trend) * max(weight, TREND_WEIGHT)
            self._recent += (value - self._recent) * max(weight, RECENT_WEIGHT)
        else:
            excess = value - self.trend
            self.spikes += excess > SPIKE_SIGMAS * sigma
            pull = PULL_SIGMAS * sigma
            self._noise += (min(distance, pull) - self._noise) * TREND_WEIGHT
            self.trend += min(excess, pull) * (TREND_WEIGHT if excess > 0 else FALL_WEIGHT)
            self._recent += min(value - self._recent, 4 * pull) * RECENT_WEIGHT
        self._last = value
