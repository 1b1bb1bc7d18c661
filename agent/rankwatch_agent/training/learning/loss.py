"""Statistics of the loss, on every step: its trend, its noise, spikes, and whether it diverges.

A spike that recovers at once is information; a loss that rises and stays is an alert. Two tests look for it:

- the *step*: a short average far above a trend that each value pulls only so far;
- the *evidence*: a cumulative sum (CUSUM, Page 1954) of how far the values stand above the lowest level of
  about the last 500 steps. It finds what no single value shows: slow drifts, growing oscillations.

Either makes the loss suspicious. It diverges once it has been so for some steps without falling back. From
then on trend and level hold still, for a bounded time, so that the divergence does not become the trend.

The agent and `rankwatch diagnose loss` judge by this class.
"""

from __future__ import annotations

import math
from enum import StrEnum

from rankwatch_agent.training.learning.loss_blocks import BLOCK_STEPS, BLOCKS, LossHistory, NoiseBlocks


class RelearnReason(StrEnum):
    """Why the loss may stand elsewhere from now on."""

    RESTART = "restart"
    """Another process goes on, perhaps from an earlier step."""
    DATASET = "dataset"
    """Other data, as the user says."""
    LEARNING_RATE = "learning_rate"
    """It changed from one step to the next; a schedule that moves a little with each step is none."""
    BATCH_SIZE = "batch_size"


ANY_LEVEL = (RelearnReason.RESTART, RelearnReason.DATASET)
"""Reasons after which the loss may stand anywhere. After the others a rise is bounded: a learning rate that
is too high must not make its own divergence normal."""
GRACE_RISE = 0.25
"""A change of learning rate or batch size may lift the loss by this part, as may other data, and a restart
over what the loss was at the same step ..."""
GRACE_STEPS = 200
"""... within so many steps."""

NOISE_WEIGHT = 0.01
"""Weight of a new distance of neighbours: a memory of about 100 steps. An oscillation that grows faster than
by 1.7 % a step does not pass as noise, which follows no faster."""
_MEAN_DISTANCE = 2.0 / math.sqrt(math.pi)
"""Mean distance of two values of Gaussian noise with standard deviation 1."""
TREND_WEIGHT = 0.02
"""Weight of a value above the trend, and of any value in the long average: a memory of about 50 steps."""
FALL_WEIGHT = 0.1
"""Weight of a value below the trend: it follows a falling loss within about 10 steps. For noise alone the
two weights put the trend about half a standard deviation below the mean."""
RECENT_WEIGHT = 0.2
"""Weight of a new value in the recent average: a memory of about 5 steps. Its own noise is a third
of the loss's (sqrt(w / (2 - w)))."""
LEVEL_WEIGHT = 0.002
"""Weight by which the low level gives way to a long average above it; noise that wanders makes it low."""
WARM_UP_STEPS = 20
"""Values before spikes and deviation are judged, at the start of each process."""
SPIKE_SIGMAS = 6.0
"""A value further above the trend than this many standard deviations is a spike."""
DIVERGENCE_SIGMAS = 5.0
"""A deviation above this, if it lasts, is a divergence: the default of `loss_deviation` in the alerts."""
PULL_SIGMAS = 3.0
"""A value above pulls the trend up as if it were at most this far away (the averages: 4x), so that
neither a spike nor a divergence drags the trend along. Downwards all follow freely: loss shall fall."""
_RELATIVE_FLOOR = 0.01
"""Noise below a hundredth of the loss is taken as that."""

ALLOWED_RISE = 0.06
"""A rise above the level by this part is no evidence, however smooth the curve: a learning rate that warms up
and data in order lift a healthy loss by so much."""
ALLOWED_SIGMAS = 1.0
"""Nor is one by this many standard deviations."""
EVIDENCE = 12.0
"""Sum of the standard deviations beyond what is allowed from which the loss is suspicious."""
_PER_EVIDENCE = DIVERGENCE_SIGMAS / EVIDENCE
MOST_EVIDENCE = 1.5 * EVIDENCE
"""More is not added up, so that the sum falls soon after a recovery."""
MOST_SIGMAS = 4.0
"""The most that one value adds to the evidence, and ..."""
LEAST_SIGMAS = -1.0
"""... takes from it: an oscillation that grows must not cancel itself."""

SUSPICIOUS_SIGMAS = 2.0
"""A deviation from which steps count towards a divergence, and ..."""
CALM_SIGMAS = 1.0
"""... below which all is well again."""
CONFIRM_STEPS = 12
"""Suspicious steps without falling back after which the loss diverges."""
FAST_WEIGHT = 0.5
"""Weight of a new value in the fast average of a suspicious loss: a memory of two steps."""
PEAK_WEIGHT = 0.1
"""Weight of the fast average's logarithm in that of its peak: what halves in less than 10 steps falls back,
and what stays, however far below its peak, does so for some 30 steps at most."""
FALLEN_BACK = 0.7
"""Below this part of the highest excess the loss is falling back, and ..."""
BACK_UP = 0.8
"""... above this part it has swung up again."""
MOST_SWINGS = 3
"""A loss that swings up so often, and is never calm between, diverges. One that swings far below its trend
between two such swings does so at once: a spike recovers to the trend, not beyond."""
FROZEN_STEPS = 1000
FROZEN_SECONDS = 900.0
"""A divergence that lasts for both is what the run is meant to do: its level is learnt. Three times as long
as the alert waits."""

_LARGEST = 1e300
"""A finite loss beyond is taken as this: distances of two values must not become infinite."""


class LossStatistics:
    """Online statistics of one rank's loss, or of another value with a trend; constant memory.

    confirm_steps: suspicious steps after which the loss diverges; infinite: it never does, and its trend
        always follows.
    least_sigma: noise below this is taken as that.
    """

    def __init__(self, *, confirm_steps: float = CONFIRM_STEPS, least_sigma: float = 1e-12) -> None:
        self.count = 0
        """Finite values seen."""
        self.nonfinite = 0
        self.spikes = 0
        self.trend = math.nan
        """The slow average; of the process before, until this one reports a loss."""
        self._confirm_steps = confirm_steps
        self._least_sigma = least_sigma
        self._history = LossHistory()
        self._step = -1
        self._short = NoiseBlocks(BLOCK_STEPS, memory=25)
        self._slow = NoiseBlocks(BLOCK_STEPS * BLOCKS, memory=16)
        self.begin_process()

    def begin_process(self) -> None:
        """Forget the trend: a run that goes on from an earlier step has the loss of that step."""
        self.recent = math.nan
        self.sigma = self._least_sigma
        """Standard deviation of the noise, at least a hundredth of the loss."""
        self.deviation = math.nan
        """How far the loss stands above what was expected; NaN in the warm-up. Of the step in standard
        deviations; of the evidence so that DIVERGENCE_SIGMAS stands for EVIDENCE. The larger one counts."""
        self._since = 0
        self._settles = False
        """Once warm, the loss may still rise for a while."""
        self.resumes = False
        """It is compared with what it was at the same step in the attempt before the restart."""
        self._last = math.nan
        self._distance = 0.0
        self._short.begin_process()
        self._slow.begin_process()
        self._long = math.nan
        self._anchor()

    def _anchor(self) -> None:
        """Expect what the long average is."""
        if self._since:
            self.trend = self._long
        self._level = self._long
        self._grace = 0
        self.resumes = False
        self._evidence = self._allowed = 0.0
        self._block_sum, self._block_values = 0.0, 0
        self._slow_sum, self._slow_blocks = 0.0, 0
        self._calm()

    def _calm(self) -> None:
        self.diverging = False
        """The loss has risen for long enough and does not fall back."""
        self._suspicious = self._falling = self._came_down = self._undershot = False
        self._held = self._swings = self._frozen = 0
        self._frozen_at = self._fast = self._peak = self._before_fall = 0.0

    def relearn(self, reason: RelearnReason) -> None:
        """Let the loss stand elsewhere from the next value on, for a reason that is known."""
        if reason in ANY_LEVEL:
            self.begin_process()
            self._settles = reason is RelearnReason.DATASET
            self.resumes = not self._settles
            if self._settles:
                self._history.clear()
        elif self.warm and not self.diverging:
            self._allow_rise()

    def _allow_rise(self) -> None:
        self._grace = GRACE_STEPS
        rise = max(GRACE_RISE * abs(self.trend), self.sigma)
        self._level = self.trend + rise  # in place of trend and level, until the grace is over

    @property
    def since(self) -> int:
        """Values since the start of the process, or since other data."""
        return self._since

    @property
    def warm(self) -> bool:
        """Enough values have been seen to judge the next one."""
        return self._since >= WARM_UP_STEPS

    @property
    def no_spike(self) -> float:
        """The highest value that is no outlier; infinite in the warm-up."""
        return self.trend + PULL_SIGMAS * self.sigma if self.warm else math.inf

    @property
    def expected(self) -> float:
        """What the loss should be: the trend, or the level where that tells more."""
        return self._level if self._grace or self._evidence * _PER_EVIDENCE >= self.deviation else self.trend

    def add(self, value: float, at: float = 0.0, step: int = -1) -> None:
        """Take the loss of the next step.

        at: seconds of any clock; without, only steps count.
        step: its number; without, the loss after a restart may stand anywhere.
        """
        if value - value:  # NaN for NaN and for infinity
            self.nonfinite += 1
            return
        if not -_LARGEST < value < _LARGEST:
            value = math.copysign(_LARGEST, value)
        self.count += 1
        self._since += 1
        self._step = step
        if self._since > WARM_UP_STEPS:
            self._follow(value)
            self._update_deviation(value)
            if self._suspicious:
                self._update_divergence(value, at)
        elif self._since > 1:
            self._learn(value)
        else:
            self.trend = self.recent = self._long = self._level = self._last = value

    def _learn(self, value: float) -> None:
        weight = 1.0 / self._since  # a plain mean first, so that the start does not linger
        self._distance += (abs(value - self._last) - self._distance) * weight
        self._last = value
        self.trend += (value - self.trend) * max(weight, TREND_WEIGHT)
        self.recent += (value - self.recent) * max(weight, RECENT_WEIGHT)
        self._long = self._level = self.trend
        self.sigma = max(
            self._distance / _MEAN_DISTANCE, _RELATIVE_FLOOR * abs(self.trend), self._least_sigma
        )
        if self._since == WARM_UP_STEPS:
            self.deviation = (self.recent - self.trend) / self.sigma
            if self._settles:
                self._allow_rise()
            elif self.resumes:
                self._compare()

    def _compare(self) -> None:
        """Expect what the loss was before the restart, if it now stands far above that."""
        before = self._history.at(self._step)
        most = before + GRACE_RISE * abs(before)
        self.resumes = self._long > most  # never, where nothing is known
        if self.resumes:
            self.trend = self._level = most
            self._grace = GRACE_STEPS
            self.deviation = (self.recent - most) / self.sigma

    # From here on comparisons take the place of `min` and `max`: half the cost, for each step of each rank.

    def _follow(self, value: float) -> None:
        """Let averages and noise follow, as far as the loss is not suspected of leading them astray."""
        sigma = self.sigma
        excess = value - self.trend
        if excess > SPIKE_SIGMAS * sigma:
            self.spikes += 1
        pull = PULL_SIGMAS * sigma
        far = 4.0 * pull
        above = value - self.recent
        self.recent += (above if above < far else far) * RECENT_WEIGHT
        above = value - self._long
        self._long += (above if above < far else far) * TREND_WEIGHT
        distance, self._last = abs(value - self._last), value
        if self.diverging:
            return
        self._distance += ((distance if distance < pull else pull) - self._distance) * NOISE_WEIGHT
        self._block_sum += value if excess < far else self.trend + far
        self._block_values += 1
        if self._block_values == BLOCK_STEPS:
            self._take_block()
        if self._grace:
            self._grace -= 1
            if not self._grace:
                self._anchor()
            return
        self.trend += (excess if excess < pull else pull) * (TREND_WEIGHT if excess > 0.0 else FALL_WEIGHT)
        gap = self._long - self._level
        self._level += gap if gap < 0.0 else gap * LEVEL_WEIGHT

    def _take_block(self) -> None:
        """Learn the noise from blocks of values, but not while they stand high: they would look noisy."""
        mean = self._block_sum / BLOCK_STEPS
        self._block_sum, self._block_values = 0.0, 0
        self._slow_sum += mean
        self._slow_blocks += 1
        calm = self.deviation <= 0.5 * DIVERGENCE_SIGMAS
        if calm:
            if self._step >= 0:
                self._history.add(self._step, mean)
            self._short.add(mean, self.sigma)
        if self._slow_blocks == BLOCKS:
            if calm:
                self._slow.add(self._slow_sum / BLOCKS, self.sigma)
            self._slow_sum, self._slow_blocks = 0.0, 0

    def _update_deviation(self, value: float) -> None:
        """Update noise, evidence and deviation."""
        sigma, short = self._distance / _MEAN_DISTANCE, self._short.sigma
        if sigma < short:
            sigma = short
        floor = _RELATIVE_FLOOR * abs(self.trend) + self._least_sigma
        if sigma < floor:
            sigma = floor
        self.sigma = sigma
        slow, level = self._slow.sigma, self._level
        if slow < sigma:
            slow = sigma
        allowed = ALLOWED_RISE * abs(level)
        noise = ALLOWED_SIGMAS * slow
        if allowed < noise:
            allowed = noise
        if self.resumes:  # the level is what is allowed
            allowed = 0.0
        self._allowed = allowed
        above = (value - level - allowed) / slow
        if above > MOST_SIGMAS:
            above = MOST_SIGMAS
        elif above < LEAST_SIGMAS:
            above = LEAST_SIGMAS
        evidence = self._evidence + above
        if evidence < 0.0:
            evidence = 0.0
        elif evidence > MOST_EVIDENCE:
            evidence = MOST_EVIDENCE
        self._evidence = evidence
        deviation = (self.recent - (level if self._grace else self.trend)) / sigma
        evidence *= _PER_EVIDENCE
        self.deviation = deviation = deviation if deviation > evidence else evidence
        if deviation > SUSPICIOUS_SIGMAS and not self._suspicious:
            self._suspicious = True
            self._fast = self.recent - self.expected

    def _update_divergence(self, value: float, at: float) -> None:
        """Decide whether a suspicious loss diverges, recovers, or is what the run is meant to do."""
        fast = self._fast = self._fast + (value - self.expected - self._fast) * FAST_WEIGHT
        fast = max(fast, 0.5 * self.sigma)  # the ratio of anything less is noise
        peak = self._peak = max(fast, self._peak * (fast / self._peak) ** PEAK_WEIGHT) if self._peak else fast
        if self.deviation <= CALM_SIGMAS:
            self._calm()
        elif self.diverging:
            self._frozen += 1
            if self._frozen >= FROZEN_STEPS and at - self._frozen_at >= (FROZEN_SECONDS if at else 0.0):
                self._anchor()
        elif self.resumes:
            self._count_above_history(at)
        elif fast < FALLEN_BACK * peak:
            self._fall_back()
        elif not self._falling or fast > BACK_UP * peak:
            self._count_suspicious(at)

    def _count_above_history(self, at: float) -> None:
        """Judge by the mean after a restart, not by the highest value: the loss does not rise, it stands."""
        self._held = self._held + 1 if self._evidence >= EVIDENCE and self._long > self._level else 0
        if self._held >= self._confirm_steps:
            self.diverging, self._frozen_at = True, at

    def _fall_back(self) -> None:
        if not self._falling:
            self._before_fall = self.trend
        self._held, self._falling, self._came_down = 0, True, True
        below = self._before_fall - self.expected - self._fast
        self._undershot = self._undershot or below > PULL_SIGMAS * self.sigma

    def _count_suspicious(self, at: float) -> None:
        """Count a step that does not fall back, if it stands out; the loss diverges after enough of them."""
        self._held += self._fast > self._allowed
        self._falling = False
        if self._came_down and self._fast > PULL_SIGMAS * self.sigma:  # less is noise
            self._came_down = False
            self._swings += MOST_SWINGS if self._undershot else 1
        lasts = self._held >= self._confirm_steps or self._swings >= MOST_SWINGS
        if lasts and self.deviation > DIVERGENCE_SIGMAS and self._confirm_steps < math.inf:
            self.diverging, self._frozen_at = True, at
