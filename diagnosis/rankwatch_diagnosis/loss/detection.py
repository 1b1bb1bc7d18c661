"""Runs all detectors over the steps of one file or run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from rankwatch_agent.training.loss import CONFIRM_STEPS
from rankwatch_diagnosis.loss.anomaly import Anomaly, Kind, Severity
from rankwatch_diagnosis.loss.detectors import (
    DivergenceDetector,
    LossScaleDetector,
    NonFiniteDetector,
    NormJumpDetector,
    PlateauDetector,
)
from rankwatch_diagnosis.loss.formats import ReadCounts, StepValues

MAX_LISTED = 1000
"""Anomalies of a kind that are listed; the rest is counted."""
RESTART_STEPS = 20
"""A step that goes back by so many is a run that goes on from a checkpoint. Ranks that write into one log
lie a few steps apart."""
PRECURSOR_STEPS = 200
"""Norms and loss scales that moved at most so many steps before a divergence are named with it."""
PRECURSORS = (
    Kind.GRADIENT_NORM_JUMP,
    Kind.UPDATE_NORM_JUMP,
    Kind.GRADIENT_NON_FINITE,
    Kind.UPDATE_NON_FINITE,
    Kind.LOSS_SCALE_COLLAPSE,
)


@dataclass(frozen=True, kw_only=True)
class LossVerdict:
    """What was found in the losses of a file or a run."""

    anomalies: tuple[Anomaly, ...]
    """By step."""
    unlisted: int
    """Anomalies beyond MAX_LISTED of their kind."""
    counts: ReadCounts
    first_step: int | None
    last_step: int | None
    persistence: int
    plateau_steps: int = 0
    """Over which the loss must improve; 0: nobody asked."""
    plateaus: tuple[tuple[int, int], ...] = ()
    """First and last step from which on, looking back, the loss had not improved."""

    def precursors(self, anomaly: Anomaly) -> tuple[Anomaly, ...]:
        """What moved shortly before the loss did; empty for anything but a divergence or NaN of the loss."""
        if anomaly.kind not in (Kind.DIVERGENCE, Kind.NON_FINITE):
            return ()
        return tuple(
            other
            for other in self.anomalies
            if other.kind in PRECURSORS and 0 <= anomaly.step - other.step <= PRECURSOR_STEPS
        )


@dataclass
class _Anomalies:
    """Bounded by kind, so that a noisy file of any size cannot fill the memory."""

    listed: dict[Kind, list[Anomaly]] = field(default_factory=dict)
    unlisted: int = 0

    def add(self, anomaly: Anomaly) -> None:
        of_kind = self.listed.setdefault(anomaly.kind, [])
        if len(of_kind) < MAX_LISTED:
            of_kind.append(anomaly)
        else:
            self.unlisted += 1

    def clear(self) -> None:
        self.listed.clear()
        self.unlisted = 0

    def by_step(self) -> Iterator[Anomaly]:
        yield from sorted(
            (each for anomalies in self.listed.values() for each in anomalies),
            key=lambda anomaly: (anomaly.step, anomaly.kind),
        )


def detect(
    rows: Iterable[StepValues],
    counts: ReadCounts,
    *,
    persistence: int = CONFIRM_STEPS,
    new_levels: Collection[int] = (),
    earlier: Iterable[Iterable[StepValues]] = (),
    plateau_steps: int = 0,
) -> LossVerdict:
    """Judge the rows in their order, in constant memory. A step that goes back far is a restart.

    counts: of what was read; what is judged and what is left out is added here.
    new_levels: steps from which the loss may stand elsewhere, as with other data.
    persistence: values for which a loss that stands out must not fall back to be a divergence.
    plateau_steps: over which the loss must improve; 0 looks for no plateau.
    earlier: attempts before. They tell what the loss was at each step; their anomalies are not reported.
    """
    anomalies = _Anomalies()
    detectors = _Detectors(anomalies, persistence)
    plateau = PlateauDetector(plateau_steps) if plateau_steps else None
    for attempt in earlier:
        for row in _distinct(attempt, ReadCounts()):
            detectors.take(row)
        detectors.end_process()
    anomalies.clear()
    first: int | None = None
    last: int | None = None
    for row in _distinct(rows, counts):
        if last is not None and row.step <= last - RESTART_STEPS:
            counts.restarts += 1
            detectors.end_process()
        elif row.step in new_levels and row.step != last:
            detectors.loss.relearn()
            if plateau is not None:
                plateau.clear()
        first = row.step if first is None else min(first, row.step)
        last = row.step
        counts.rows += 1
        counts.losses += row.loss is not None
        detectors.take(row)
        if plateau is not None and row.loss is not None:
            plateau.take(row.step, min(row.loss, detectors.loss.no_spike))
    detectors.end_process()
    return LossVerdict(
        anomalies=tuple(anomalies.by_step()),
        unlisted=anomalies.unlisted,
        counts=counts,
        first_step=first,
        last_step=last,
        persistence=persistence,
        plateau_steps=plateau_steps,
        plateaus=tuple(plateau.found) if plateau is not None else (),
    )


def _distinct(rows: Iterable[StepValues], counts: ReadCounts) -> Iterator[StepValues]:
    """Of the rows of one step that follow each other, the first with a loss and the first without."""
    step: int | None = None
    seen: set[bool] = set()
    for row in rows:
        has_loss = row.loss is not None
        if row.step != step:
            step, seen = row.step, set()
        elif has_loss in seen:
            counts.repeated += 1
            continue
        seen.add(has_loss)
        yield row


class _Detectors:
    def __init__(self, anomalies: _Anomalies, persistence: int) -> None:
        add, info, warning = anomalies.add, Severity.INFO, Severity.WARNING
        finite = {
            "loss": NonFiniteDetector(add, Kind.NON_FINITE, recovered_severity=warning),
            "grad_norm": NonFiniteDetector(add, Kind.GRADIENT_NON_FINITE, recovered_severity=info),
            "update_norm": NonFiniteDetector(add, Kind.UPDATE_NON_FINITE, recovered_severity=info),
        }
        self.loss = DivergenceDetector(add, persistence=persistence)
        detectors: dict[str, DivergenceDetector | NormJumpDetector | LossScaleDetector] = {
            "loss": self.loss,
            "grad_norm": NormJumpDetector(add, Kind.GRADIENT_NORM_JUMP),
            "update_norm": NormJumpDetector(add, Kind.UPDATE_NORM_JUMP),
            "loss_scale": LossScaleDetector(add),
        }
        self._takers = [
            (StepValues._fields.index(name), detector)
            for name, detector in (*finite.items(), *detectors.items())
        ]

    def take(self, row: StepValues) -> None:
        for place, detector in self._takers:
            value = row[place]
            if value is not None:
                detector.take(row.step, value)

    def end_process(self) -> None:
        for _, detector in self._takers:
            detector.end_process()
