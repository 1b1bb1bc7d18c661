"""Detectors of NaN and infinity, diverging losses, jumping norms and collapsing loss scales.

Each takes the values of one column in their order, and emits an anomaly when that is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rankwatch_agent.training.learning.loss import (
    CONFIRM_STEPS,
    DIVERGENCE_SIGMAS,
    LossStatistics,
    RelearnReason,
)
from rankwatch_agent.training.learning.loss_blocks import PLATEAU_IMPROVEMENT, Plateau
from rankwatch_agent.training.learning.scalars import (
    JUMP_PERSISTENCE_VALUES,
    SMALLEST_SCALE,
    LossScaleStatistics,
    NormStatistics,
)
from rankwatch_diagnosis.loss.anomaly import Anomaly, Excursion, Kind, Severity

FEW_VALUES = 3
"""Values that are not finite, of which so many are single steps, such as a loss scaler skips."""
MOST_PLATEAUS = 20
RETURN_VALUES = 1000
"""Values within which a loss that no longer stands out may come back to where it was. The longest average of
the trend reaches as far; a loss that takes longer has become the trend."""


class _ExcursionDetector:
    """Emits an anomaly of one kind for each excursion of its values."""

    def __init__(self, emit: Callable[[Anomaly], None], kind: Kind) -> None:
        self._emit = emit
        self._kind = kind
        self._excursion: Excursion | None = None

    def end_process(self) -> None:
        """Conclude where the file ends, or the run goes on from an earlier step."""
        self._conclude(recovered=self._excursion is None or not self._excursion.above_now)

    def _add_outlier(
        self, step: int, value: float, expected: float, *, above: bool, confirm_after: int
    ) -> None:
        if self._excursion is None:
            self._excursion = Excursion(step, value, expected)
        self._excursion.add_outlier(step, value, expected, above=above, confirm_after=confirm_after)

    def _add_ordinary(self) -> None:
        if self._excursion is not None:
            self._excursion.add_ordinary()
            if self._excursion.over:
                self._conclude(recovered=True)

    def _conclude(self, *, recovered: bool) -> None:
        excursion, self._excursion = self._excursion, None
        if excursion is not None:
            severity = self._severity(excursion, recovered=recovered)
            self._emit(excursion.anomaly(self._kind, severity, recovered=recovered))

    def _severity(self, excursion: Excursion, *, recovered: bool) -> Severity:
        raise NotImplementedError


class NonFiniteDetector(_ExcursionDetector):
    """Finds NaN and infinity in the values of one column.

    recovered_severity: of up to FEW_VALUES such values after which all was well again.
    """

    def __init__(self, emit: Callable[[Anomaly], None], kind: Kind, *, recovered_severity: Severity) -> None:
        super().__init__(emit, kind)
        self._recovered_severity = recovered_severity
        self._last = math.nan

    def take(self, step: int, value: float) -> None:
        """Take the value of a step."""
        if math.isfinite(value):
            self._last = value
            self._add_ordinary()
        else:
            self._add_outlier(step, value, self._last, above=True, confirm_after=FEW_VALUES + 1)

    def _severity(self, excursion: Excursion, *, recovered: bool) -> Severity:
        if not recovered:
            return Severity.CRITICAL
        return self._recovered_severity if excursion.values <= FEW_VALUES else Severity.WARNING


class NormJumpDetector(_ExcursionDetector):
    """Finds jumps of the gradient norm or of the update norm, which may come before the loss breaks."""

    def __init__(self, emit: Callable[[Anomaly], None], kind: Kind) -> None:
        super().__init__(emit, kind)
        self._statistics = NormStatistics()

    def take(self, step: int, value: float) -> None:
        """Take the norm of a step; one that is zero, negative or not finite is ignored here."""
        statistics = self._statistics
        if not statistics.add(value):
            return
        if statistics.stands_out:
            self._add_outlier(
                step,
                value,
                statistics.expected,
                above=statistics.above,
                confirm_after=JUMP_PERSISTENCE_VALUES,
            )
        else:
            self._add_ordinary()

    def end_process(self) -> None:
        """Conclude where the file ends, or the run goes on from an earlier step."""
        super().end_process()
        self._statistics.begin_process()

    def _severity(self, excursion: Excursion, *, recovered: bool) -> Severity:
        return Severity.INFO if excursion.confirmed_step is None else Severity.WARNING


@dataclass
class _LastingDivergence:
    """A divergence whose level has become the trend, and which may still come back."""

    excursion: Excursion
    return_below: float
    values_left: int = RETURN_VALUES


class DivergenceDetector:
    """Finds spikes and divergences of the loss, by the statistics that the agent keeps of every rank.

    persistence: values for which a loss that stands out must not fall back.
    """

    def __init__(self, emit: Callable[[Anomaly], None], *, persistence: int = CONFIRM_STEPS) -> None:
        self._emit = emit
        self._statistics = LossStatistics(confirm_steps=persistence)
        self._excursion: Excursion | None = None
        self._lasting: list[_LastingDivergence] = []
        self._return_below = math.inf
        """Recent average below which the loss is back where it was when the excursion began."""

    def take(self, step: int, value: float) -> None:
        """Take the loss of a step; one that is not finite is left to the NonFiniteDetector."""
        statistics = self._statistics
        expected, sigma, spikes = statistics.expected, statistics.sigma, statistics.spikes
        statistics.add(value, step=step)
        if not math.isfinite(value):
            return
        if self._lasting:
            self._await_return()
        above = statistics.deviation > DIVERGENCE_SIGMAS
        # The statistics say when it is certain, not a number of values in a row.
        confirm_after = 0.0 if statistics.diverging else math.inf
        if above or statistics.spikes > spikes:
            if self._excursion is None:
                self._excursion = Excursion(step, value, expected)
                self._return_below = expected
                if not statistics.resumes:
                    self._return_below += 0.5 * DIVERGENCE_SIGMAS * sigma
            self._excursion.add_outlier(step, value, expected, above=above, confirm_after=confirm_after)
        elif self._excursion is not None:
            self._excursion.add_ordinary()
            if self._excursion.over and not statistics.diverging:
                self._conclude(ended=False)

    def end_process(self) -> None:
        """Conclude where the file ends, or the run goes on from an earlier step."""
        self._conclude(ended=True)
        for each in self._lasting:
            self._emit(each.excursion.anomaly(Kind.DIVERGENCE, Severity.CRITICAL, recovered=False))
        self._lasting.clear()
        self._statistics.relearn(RelearnReason.RESTART)

    @property
    def no_spike(self) -> float:
        """The highest loss that is no outlier."""
        return self._statistics.no_spike

    def relearn(self) -> None:
        """Learn anew: from the next value on the loss may stand elsewhere."""
        self.end_process()
        self._statistics.relearn(RelearnReason.DATASET)

    def _await_return(self) -> None:
        """Emit the divergences that have come back, and those for which it is too late."""
        recent = self._statistics.recent
        for each in self._lasting:
            each.values_left -= 1
            if recent < each.return_below:
                self._emit(each.excursion.anomaly(Kind.DIVERGENCE, Severity.WARNING, recovered=True))
            elif not each.values_left:
                self._emit(each.excursion.anomaly(Kind.DIVERGENCE, Severity.CRITICAL, recovered=False))
        self._lasting = [each for each in self._lasting if each.values_left and recent >= each.return_below]

    def _conclude(self, *, ended: bool) -> None:
        excursion, self._excursion = self._excursion, None
        if excursion is None:
            return
        up = ended and (excursion.above_now or self._statistics.diverging)
        recovered = self._statistics.recent < self._return_below and not up
        if excursion.confirmed_step is not None and not recovered and not ended:
            self._lasting.append(_LastingDivergence(excursion, self._return_below))
            return
        kind, severity = Kind.SPIKE, Severity.INFO
        if excursion.confirmed_step is not None:
            kind, severity = Kind.DIVERGENCE, Severity.WARNING if recovered else Severity.CRITICAL
        elif ended and excursion.above_now:
            kind, severity = Kind.DIVERGENCE, Severity.WARNING  # too short to tell a spike from its start
        else:
            recovered = not (ended and excursion.outlier_now)
        self._emit(excursion.anomaly(kind, severity, recovered=recovered))


class PlateauDetector:
    """Finds the steps at which the loss had not improved for so many steps."""

    def __init__(self, steps: int) -> None:
        self.found: list[tuple[int, int]] = []
        """First and last step of each plateau, the newest MOST_PLATEAUS."""
        self._plateau = Plateau(steps)
        self._on_it = False

    def clear(self) -> None:
        """Forget the plateau: other data have another loss."""
        self._plateau.clear()
        self._on_it = False

    def take(self, step: int, value: float) -> None:
        """Take the loss of a step."""
        self._plateau.add(value, step)
        before, self._on_it = self._on_it, self._plateau.improvement < PLATEAU_IMPROVEMENT
        if self._on_it:
            first = self.found.pop()[0] if before else step
            self.found = [*self.found[1 - MOST_PLATEAUS :], (first, max(step, first))]


class LossScaleDetector:
    """Finds collapses of the loss scale, by the statistics that the agent keeps."""

    def __init__(self, emit: Callable[[Anomaly], None]) -> None:
        self._emit = emit
        self._statistics = LossScaleStatistics()
        self._begin()

    def _begin(self) -> None:
        self._step = self._last_step = 0
        self._first = math.nan
        self._halvings = 0
        self._collapsed = False

    def take(self, step: int, value: float) -> None:
        """Take the scale of a step; one that is no positive number is ignored."""
        statistics = self._statistics
        halvings = statistics.halvings
        if not statistics.add(value):
            return
        if statistics.halvings > halvings:
            if not self._halvings:
                self._step, self._first = step, value
            self._last_step = step
            self._halvings += 1
        self._collapsed = self._collapsed or (statistics.falling and statistics.collapsed)
        if not statistics.falling:
            self._conclude(recovered=value >= SMALLEST_SCALE)

    def end_process(self) -> None:
        """Conclude where the file ends, or the run goes on from an earlier step."""
        self._conclude(recovered=False)
        self._statistics.begin_process()

    def _conclude(self, *, recovered: bool) -> None:
        if self._collapsed:
            scale = self._statistics.last
            self._emit(
                Anomaly(
                    step=self._step,
                    kind=Kind.LOSS_SCALE_COLLAPSE,
                    value=self._first,
                    expected=self._statistics.before,
                    severity=Severity.CRITICAL if scale < SMALLEST_SCALE else Severity.WARNING,
                    last_step=self._last_step,
                    values=self._halvings,
                    highest=scale,
                    recovered=recovered,
                )
            )
        self._begin()
