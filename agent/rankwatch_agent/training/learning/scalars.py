"""What the scalars of a rank say about its learning, beside the loss: norms, loss scale, changes of regime.

Each of these is judged on every step, by the agent and by `rankwatch diagnose loss` alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rankwatch.conventions.vocabulary import (
    DATASET,
    GRADIENT_NORM,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    UPDATE_NORM,
    UPDATE_SKIPPED,
)
from rankwatch_agent.runtime.collector import FigureTable, Series, Wall, sample
from rankwatch_agent.training.learning.loss import (
    DIVERGENCE_SIGMAS,
    SPIKE_SIGMAS,
    LossStatistics,
    RelearnReason,
)
from rankwatch_agent.training.learning.loss_blocks import Plateau

JUMP_RATIO = 2.0
"""A norm below this many times its trend is no jump: norms wander."""
JUMP_PERSISTENCE_VALUES = 5
"""Values in a row after which a jump is more than a few odd batches: an explosion."""
JUMP_GAP_VALUES = 20
"""Ordinary values in a row after which the next explosion is another one."""
LEAST_NOISE = 0.05
"""Norms vary by a part less than this only where the update is a sign or a constant."""
_LARGEST_LOGARITHM = 700.0


class NormStatistics:
    """Online statistics of a gradient norm or of an update norm.

    In a run of 32 billion parameters the update norm of Adam doubled before the loss spiked, and the
    gradient norm followed (https://github.com/marin-community/marin/issues/1368). The logarithm is compared,
    because the noise of a norm grows with its size, and with the trend only, because norms may rise slowly
    in a healthy run.
    """

    def __init__(self) -> None:
        self.explosions = 0
        """Jumps that lasted."""
        self.exploded_at: float | None = None
        """When the last of them was seen, monotonic."""
        self._statistics = LossStatistics(confirm_steps=math.inf, least_sigma=LEAST_NOISE)
        self.begin_process()

    def begin_process(self) -> None:
        """Forget the trend: the run goes on from an earlier step."""
        self._statistics.begin_process()
        self.above = False
        """The smoothed norm stands far above its trend."""
        self.stands_out = False
        """So does it, or the last value alone."""
        self.expected = math.nan
        """The trend before the last value."""
        self._in_a_row = self._ordinary = 0
        self._exploded = False

    @property
    def ratio(self) -> float:
        """The smoothed norm as a multiple of its trend; NaN while there is none."""
        statistics = self._statistics
        if not statistics.warm:
            return math.nan
        return math.exp(min(statistics.recent - statistics.trend, _LARGEST_LOGARITHM))

    def add(self, value: float, at: float = 0.0) -> bool:
        """Take the norm of a step, of this monotonic time; False for one that is zero, negative or not
        finite, and ignored here."""
        if not 0.0 < value < math.inf:
            return False
        statistics = self._statistics
        warm, trend, sigma = statistics.warm, statistics.trend, statistics.sigma
        logarithm = math.log(value)
        statistics.add(logarithm)
        if not warm:
            return True
        least = math.log(JUMP_RATIO)
        self.expected = math.exp(trend)
        self.above = statistics.recent - trend > max(least, DIVERGENCE_SIGMAS * sigma)
        self.stands_out = self.above or logarithm - trend > max(least, SPIKE_SIGMAS * sigma)
        self._count(at)
        return True

    def _count(self, at: float) -> None:
        self._in_a_row = self._in_a_row + 1 if self.above else 0
        self._ordinary = 0 if self.stands_out else self._ordinary + 1
        if self._ordinary >= JUMP_GAP_VALUES:
            self._exploded = False
        if self._in_a_row >= JUMP_PERSISTENCE_VALUES and not self._exploded:
            self._exploded = True
            self.explosions += 1
            self.exploded_at = at


COLLAPSE_RATIO = 1 / 16
"""Four halvings from a scale that had held: a healthy scaler halves once and holds."""
COLLAPSE_SKIPS = 4
"""Updates skipped at the smallest scale, which a scaler that may not go below halves no more."""
SMALLEST_SCALE = 1.0
"""A smaller scale makes gradients smaller instead of larger: no number format gains by that."""
HOLD_VALUES = 50
"""Values without a halving that end a collapse. A process must also show so many before four halvings count:
a scaler begins too high and finds its place by halving."""


class LossScaleStatistics:
    """Tells the collapse of a loss scale from the single skips of a healthy scaler.

    A scaler that halves again and again finds only overflow: gradients are not finite whatever the scale.
    """

    def __init__(self) -> None:
        self.seen = False
        self.halvings = 0
        self.skipped = 0
        """Updates that the scaler skipped."""
        self.begin_process()

    def begin_process(self) -> None:
        """Note that another scaler begins."""
        self.last = self.before = math.nan
        """The scale now, and before the first of the present halvings."""
        self.falling = False
        """It has halved, and not held since."""
        self.collapsed = False
        self._settled = False
        self._held = self._skips_at_smallest = 0

    def add(self, scale: float) -> bool:
        """Take the scale of a step; False for one that is no positive number, and ignored."""
        if not 0.0 < scale < math.inf:
            return False
        self.seen = True
        before, self.last = self.last, scale
        if scale < before:
            self._fell(before)
        else:
            self._held += 1
            if self._held >= HOLD_VALUES:
                self._holds()
        return True

    def skip(self) -> None:
        """Count a step whose update was skipped."""
        self.seen = True
        self.skipped += 1
        if self.last <= SMALLEST_SCALE:
            self._held = 0
            self._skips_at_smallest += 1
            self.collapsed = self.collapsed or self._skips_at_smallest >= COLLAPSE_SKIPS

    def _fell(self, before: float) -> None:
        self.halvings += 1
        self._held = 0
        if not self.falling:
            self.falling, self.before = True, before
        if self.last < SMALLEST_SCALE or (self._settled and self.last <= self.before * COLLAPSE_RATIO):
            self.collapsed = True

    def _holds(self) -> None:
        self._settled, self.falling, self._skips_at_smallest = True, False, 0
        self.collapsed = self.collapsed and self.last < SMALLEST_SCALE


ABRUPT_RATIO = 1.2
"""A learning rate or batch that changes by less from one step to the next is a schedule, or noise."""
_SMOOTH = 2.0
"""Nor is a change abrupt that is at most this many times the one before: warm-up and decay to zero."""
STEPS_BETWEEN_RESETS = 50
HELD_STEPS = 10
"""Steps of one size after which another size is a change. Batches of ever other sizes have none."""


class _LearningRate:
    def __init__(self) -> None:
        self._last = self._change = math.nan
        self._step = -1

    def changes(self, value: float, step: int) -> bool:
        """Take the rate of a step; whether it is an abrupt change."""
        if step == self._step or not 0.0 <= value < math.inf:
            return False
        before, change_before = self._last, self._change
        self._last, self._step, self._change = value, step, abs(value - before)
        small, large = min(value, before), max(value, before)
        return small > 0.0 and small * ABRUPT_RATIO <= large and self._change > _SMOOTH * change_before


class _BatchSize:
    """The amount of one unit in each step."""

    def __init__(self) -> None:
        self._step, self._sum = -1, 0.0
        self._size = self._other = math.nan
        self._held = 0

    def changes(self, amount: float, step: int) -> bool:
        """Take work of a step; whether the steps before it have another size than the many before those.

        One step alone does not count: the last batch of an epoch is smaller.
        """
        if step == self._step:
            self._sum += amount
            return False
        size, started = self._sum, self._step >= 0
        self._step, self._sum = step, amount
        return started and self._ended(size)

    def _ended(self, size: float) -> bool:
        if size == self._size:
            self._held += 1
            self._other = math.nan
        elif size == self._other:
            held, small, large = self._held, min(size, self._size), max(size, self._size)
            self._size, self._other, self._held = size, math.nan, 2
            return held >= HELD_STEPS and small * ABRUPT_RATIO <= large
        elif self._held >= HELD_STEPS:
            self._other = size
        else:
            self._size, self._held = size, 1
        return False


REASONS = tuple(RelearnReason)
BATCH_UNITS = ("samples", "tokens")
NORMS = (GRADIENT_NORM, UPDATE_NORM)
JUDGED = frozenset((LOSS, *NORMS, LOSS_SCALE, UPDATE_SKIPPED, LEARNING_RATE, DATASET))
"""Scalars that are judged on every step."""
_LOSS_SCALE = FigureTable(
    {
        "rankwatch_loss_scale_halvings_total": "halvings",
        "rankwatch_updates_skipped_total": "skipped",
        "rankwatch_loss_scale_collapsed": "collapsed",
    }
)


class RankLearning:
    """What the scalars of one rank add up to, across restarts of its process."""

    def __init__(self) -> None:
        self.loss = LossStatistics()
        self.norms: dict[str, NormStatistics] = {}
        self.loss_scale = LossScaleStatistics()
        self.resets = dict.fromkeys(REASONS, 0)
        """Times for which the loss may stand elsewhere, by reason."""
        self.first_nonfinite: dict[str, int] = {}
        """Scalar -> step of its first NaN or infinity in the present process."""
        self.plateau: Plateau | None = None
        """None where nobody looks for one."""
        self._dataset = math.nan
        self._begin()

    def _begin(self) -> None:
        self._rate = _LearningRate()
        self._loss_step = -1
        self._batches = {unit: _BatchSize() for unit in BATCH_UNITS}
        self._reset_step = -STEPS_BETWEEN_RESETS

    def begin_process(self) -> None:
        """Note that another process takes the rank, and may go on from an earlier step."""
        self.resets[RelearnReason.RESTART] += 1
        self.loss.relearn(RelearnReason.RESTART)
        for each in self.norms.values():
            each.begin_process()
        self.loss_scale.begin_process()
        self.first_nonfinite.clear()
        self._begin()

    def watch_plateau(self, steps: int) -> None:
        """Look for a plateau of so many steps from now on; 0: for none."""
        self.plateau = Plateau(steps) if steps else None

    def take(self, name: str, value: float, step: int, at: float) -> None:
        """Take a scalar; `at` in monotonic seconds. One that is not JUDGED is ignored."""
        if name in NORMS:
            norm = self.norms.get(name)
            if norm is None:
                norm = self.norms[name] = NormStatistics()
            norm.add(value, at)
        elif name == LOSS:
            # Another of the same step is that of an evaluation, or of a part of the batch.
            if step != self._loss_step or step < 0 or value - value:
                self.loss.add(value, at, step)
                self._loss_step = step
                if self.plateau is not None:
                    self.plateau.add(min(value, self.loss.no_spike), step)
        elif name == LEARNING_RATE:
            if self._rate.changes(value, step):
                self._reset(RelearnReason.LEARNING_RATE, step)
            return
        elif name == LOSS_SCALE:
            self.loss_scale.add(value)
            return
        elif name == DATASET:
            self._take_dataset(value)
            return
        elif name == UPDATE_SKIPPED and value > 0.0:
            self.loss_scale.skip()
            return
        if value - value:  # NaN for NaN and for infinity
            self.first_nonfinite.setdefault(name, step)

    def _take_dataset(self, value: float) -> None:
        """Take the number of the data. The first one of a process is a change, too, after a loss."""
        before, self._dataset = self._dataset, value
        if value != before and (before == before or self.loss.since):
            self.resets[RelearnReason.DATASET] += 1
            self.loss.relearn(RelearnReason.DATASET)
            if self.plateau is not None:
                self.plateau.clear()

    def work(self, unit: str, amount: float, step: int) -> None:
        """Take work that was done in a step."""
        batch = self._batches.get(unit)
        if batch is not None and step >= 0 and batch.changes(amount, step):
            self._reset(RelearnReason.BATCH_SIZE, step)

    def _reset(self, reason: RelearnReason, step: int) -> None:
        if step - self._reset_step >= STEPS_BETWEEN_RESETS:
            self._reset_step = step
            self.resets[reason] += 1
            self.loss.relearn(reason)

    def series(self, key: tuple[str, str], wall: Wall = float) -> Iterator[Series]:
        """Yield the series of the rank; `key`: run and number. `wall` turns monotonic into Unix time."""
        loss = self.loss
        if loss.count:
            yield sample("rankwatch_loss_spikes_total", key, loss.spikes)
            if not math.isnan(loss.deviation):
                yield sample("rankwatch_loss_deviation", key, loss.deviation)
            if self.plateau is not None and not math.isnan(self.plateau.improvement):
                yield sample("rankwatch_loss_improvement", key, self.plateau.improvement)
            for reason, count in self.resets.items():
                yield sample("rankwatch_learning_resets_total", (*key, reason), count)
        for name, norm in self.norms.items():
            yield sample("rankwatch_norm_explosions_total", (*key, name), norm.explosions)
            if not math.isnan(norm.ratio):
                yield sample("rankwatch_norm_ratio", (*key, name), norm.ratio)
            if norm.exploded_at is not None:
                exploded = wall(norm.exploded_at)
                yield sample("rankwatch_norm_last_explosion_timestamp_seconds", (*key, name), exploded)
        for name, step in self.first_nonfinite.items():
            yield sample("rankwatch_scalar_first_nonfinite_step", (*key, name), step)
        if self.loss_scale.seen:
            yield from _LOSS_SCALE.series(key, self.loss_scale)
