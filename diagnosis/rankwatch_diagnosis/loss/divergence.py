"""Spikes and divergences of the loss, by the statistics that the agent keeps of every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rankwatch_agent.training.loss import DIVERGENCE_SIGMAS, LossStatistics
from rankwatch_diagnosis.loss.alarm import Alarm, Kind, Severity
from rankwatch_diagnosis.loss.episode import Episode, begin

PERSISTENCE_VALUES = 30
"""Values in a row by which a deviation has lasted. The alert waits 300 s (`loss_for_seconds`); a file has no
clock, and 30 steps are 300 s at 10 s a step. Spikes that recover at once stay far below it: three bad
batches lift the deviation for about six values."""
RETURN_VALUES = 1000
"""Values within which a loss that has ceased to stand out may come back to where it was. The longest average
of the trend reaches as far; a loss that takes longer has been learnt anew."""


@dataclass
class _Standing:
    """A divergence to whose level the statistics have got used, and which has not come back."""

    episode: Episode
    return_below: float
    values_left: int = RETURN_VALUES


class LossJudge:
    """Takes the losses in their order and hands each episode out when it is over.

    persistence: values in a row for which the deviation must stand above its threshold.
    """

    def __init__(self, emit: Callable[[Alarm], None], *, persistence: int = PERSISTENCE_VALUES) -> None:
        self._emit = emit
        self._persistence = persistence
        self._statistics = LossStatistics()
        self._episode: Episode | None = None
        self._standing: list[_Standing] = []
        self._return_below = math.inf
        """Recent average below which the loss is back where it was when the episode began."""

    def take(self, step: int, value: float) -> None:
        """Take the loss of a step; one that is not finite is left to others."""
        statistics = self._statistics
        expected, sigma, spikes = statistics.expected, statistics.sigma, statistics.spikes
        statistics.add(value)
        if not math.isfinite(value):
            return
        if self._standing:
            self._await_return()
        above = statistics.deviation > DIVERGENCE_SIGMAS
        if above or statistics.spikes > spikes:
            if self._episode is None:
                self._episode = begin(step, value, expected)
                self._return_below = expected + 0.5 * DIVERGENCE_SIGMAS * sigma
            self._episode.odd(step, value, expected, above=above, confirm_after=self._persistence)
        elif self._episode is not None:
            self._episode.ordinary()
            if self._episode.over:
                self._conclude(ended=False)

    def end_process(self) -> None:
        """The file ends, or the run goes on from an earlier step."""
        self._conclude(ended=True)
        for each in self._standing:
            self._emit(each.episode.alarm(Kind.DIVERGENCE, Severity.CRITICAL, recovered=False))
        self._standing.clear()
        self._statistics.begin_process()

    def _await_return(self) -> None:
        """Hand out the divergences that have come back, and those for which it is too late."""
        recent = self._statistics.recent
        for each in self._standing:
            each.values_left -= 1
            if recent < each.return_below:
                self._emit(each.episode.alarm(Kind.DIVERGENCE, Severity.WARNING, recovered=True))
            elif not each.values_left:
                self._emit(each.episode.alarm(Kind.DIVERGENCE, Severity.CRITICAL, recovered=False))
        self._standing = [each for each in self._standing if each.values_left and recent >= each.return_below]

    def _conclude(self, *, ended: bool) -> None:
        episode, self._episode = self._episode, None
        if episode is None:
            return
        recovered = self._statistics.recent < self._return_below and not (ended and episode.above_now)
        if episode.confirmed_step is not None and not recovered and not ended:
            self._standing.append(_Standing(episode, self._return_below))
            return
        kind, severity = Kind.SPIKE, Severity.INFO
        if episode.confirmed_step is not None:
            kind, severity = Kind.DIVERGENCE, Severity.WARNING if recovered else Severity.CRITICAL
        elif ended and episode.above_now:
            kind, severity = Kind.DIVERGENCE, Severity.WARNING  # too short to tell a spike from its start
        else:
            recovered = not (ended and episode.odd_now)
        self._emit(episode.alarm(kind, severity, recovered=recovered))
