"""Jumps of the gradient norm and of the update norm, which may come before the loss breaks.

In a run of 32 billion parameters the update norm of Adam doubled before the loss spiked, and the gradient
norm followed (https://github.com/marin-community/marin/issues/1368).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rankwatch_agent.training.loss import DIVERGENCE_SIGMAS, SPIKE_SIGMAS, LossStatistics
from rankwatch_diagnosis.loss.alarm import Alarm, Kind, Severity
from rankwatch_diagnosis.loss.episode import Episode, begin

JUMP_RATIO = 2.0
"""A norm below this many times its trend is no jump: norms wander."""
PERSISTENCE_VALUES = 5
"""Values in a row after which a jump is more than odd batches."""


class NormJudge:
    """Takes the norms of one kind in their order and hands out their jumps.

    It looks at the logarithm, for the noise of a norm goes with its size, and at the trend only: norms
    may rise slowly in a healthy run.
    """

    def __init__(self, emit: Callable[[Alarm], None], kind: Kind) -> None:
        self._emit = emit
        self._kind = kind
        self._statistics = LossStatistics()
        self._episode: Episode | None = None

    def take(self, step: int, value: float) -> None:
        """Take the norm of a step; one that is zero, negative or not finite tells nothing here."""
        if not 0.0 < value < math.inf:
            return
        statistics = self._statistics
        warm, trend, sigma = statistics.warm, statistics.trend, statistics.sigma
        logarithm = math.log(value)
        statistics.add(logarithm)
        ratio = math.log(JUMP_RATIO)
        above = warm and statistics.recent - trend > max(ratio, DIVERGENCE_SIGMAS * sigma)
        if above or (warm and logarithm - trend > max(ratio, SPIKE_SIGMAS * sigma)):
            if self._episode is None:
                self._episode = begin(step, value, math.exp(trend))
            self._episode.odd(step, value, math.exp(trend), above=above, confirm_after=PERSISTENCE_VALUES)
        elif self._episode is not None:
            self._episode.ordinary()
            if self._episode.over:
                self._conclude(recovered=True)

    def end_process(self) -> None:
        """The file ends, or the run goes on from an earlier step."""
        if self._episode is not None:
            self._conclude(recovered=not self._episode.above_now)
        self._statistics.begin_process()

    def _conclude(self, *, recovered: bool) -> None:
        episode, self._episode = self._episode, None
        if episode is None:
            return
        severity = Severity.INFO if episode.confirmed_step is None else Severity.WARNING
        self._emit(episode.alarm(self._kind, severity, recovered=recovered))
