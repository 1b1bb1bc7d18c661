"""Values that are NaN or infinite: of the loss, of the gradient norm, of the update norm."""

from __future__ import annotations

import math
from collections.abc import Callable

from rankwatch_diagnosis.loss.alarm import Alarm, Kind, Severity
from rankwatch_diagnosis.loss.episode import Episode, begin

FEW_VALUES = 3
"""Up to so many in an episode that recovers are single steps, such as a loss scaler skips."""


class FiniteJudge:
    """Takes the values of one column in their order and hands out episodes of NaN and infinity.

    recovered_severity: of up to FEW_VALUES values after which all was well again.
    """

    def __init__(self, emit: Callable[[Alarm], None], kind: Kind, *, recovered_severity: Severity) -> None:
        self._emit = emit
        self._kind = kind
        self._recovered_severity = recovered_severity
        self._episode: Episode | None = None
        self._last = math.nan

    def take(self, step: int, value: float) -> None:
        """Take the value of a step."""
        if not math.isfinite(value):
            if self._episode is None:
                self._episode = begin(step, value, self._last)
            self._episode.odd(step, value, self._last, above=True, confirm_after=FEW_VALUES + 1)
            return
        self._last = value
        if self._episode is not None:
            self._episode.ordinary()
            if self._episode.over:
                self._conclude(recovered=True)

    def end_process(self) -> None:
        """The file ends, or the run goes on from an earlier step."""
        if self._episode is not None:
            self._conclude(recovered=not self._episode.above_now)

    def _conclude(self, *, recovered: bool) -> None:
        episode, self._episode = self._episode, None
        if episode is None:
            return
        if not recovered:
            severity = Severity.CRITICAL
        elif episode.values <= FEW_VALUES:
            severity = self._recovered_severity
        else:
            severity = Severity.WARNING
        self._emit(episode.alarm(self._kind, severity, recovered=recovered))
