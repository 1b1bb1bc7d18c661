"""All judges over the rows of one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rankwatch_diagnosis.loss.alarm import Alarm, Kind, Severity
from rankwatch_diagnosis.loss.divergence import PERSISTENCE_VALUES, LossJudge
from rankwatch_diagnosis.loss.loss_scale import LossScaleJudge
from rankwatch_diagnosis.loss.non_finite import FiniteJudge
from rankwatch_diagnosis.loss.norms import NormJudge
from rankwatch_diagnosis.loss.row import Intake, Row

MAX_LISTED = 1000
"""Alarms of a kind that are listed; the rest is counted."""
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
class Findings:
    """What a file tells of its loss."""

    alarms: tuple[Alarm, ...]
    """By step."""
    unlisted: int
    """Alarms beyond MAX_LISTED of their kind."""
    intake: Intake
    first_step: int | None
    last_step: int | None
    persistence: int

    def precursors(self, alarm: Alarm) -> tuple[Alarm, ...]:
        """What moved shortly before the loss did; empty for what is no divergence or NaN of the loss."""
        if alarm.kind not in (Kind.DIVERGENCE, Kind.NON_FINITE):
            return ()
        return tuple(
            other
            for other in self.alarms
            if other.kind in PRECURSORS and 0 <= alarm.step - other.step <= PRECURSOR_STEPS
        )


@dataclass
class _Alarms:
    """Bounded by kind, so that a noisy file of any size cannot fill the memory."""

    listed: dict[Kind, list[Alarm]] = field(default_factory=dict)
    unlisted: int = 0

    def add(self, alarm: Alarm) -> None:
        of_kind = self.listed.setdefault(alarm.kind, [])
        if len(of_kind) < MAX_LISTED:
            of_kind.append(alarm)
        else:
            self.unlisted += 1

    def by_step(self) -> Iterator[Alarm]:
        yield from sorted(
            (each for alarms in self.listed.values() for each in alarms),
            key=lambda alarm: (alarm.step, alarm.kind),
        )


def detect(rows: Iterable[Row], intake: Intake, *, persistence: int = PERSISTENCE_VALUES) -> Findings:
    """Judge the rows in their order; constant memory. `intake` counts what was judged and left out."""
    alarms = _Alarms()
    judges = _Judges(alarms, persistence)
    first: int | None = None
    last: int | None = None
    for row in _distinct(rows, intake):
        if last is not None and row.step <= last - RESTART_STEPS:
            intake.restarts += 1
            judges.end_process()
        first = row.step if first is None else min(first, row.step)
        last = row.step
        intake.rows += 1
        intake.losses += row.loss is not None
        judges.take(row)
    judges.end_process()
    return Findings(
        alarms=tuple(alarms.by_step()),
        unlisted=alarms.unlisted,
        intake=intake,
        first_step=first,
        last_step=last,
        persistence=persistence,
    )


def _distinct(rows: Iterable[Row], intake: Intake) -> Iterator[Row]:
    """Of the rows of one step that follow each other, the first with a loss and the first without."""
    step: int | None = None
    seen: set[bool] = set()
    for row in rows:
        has_loss = row.loss is not None
        if row.step != step:
            step, seen = row.step, set()
        elif has_loss in seen:
            intake.repeated += 1
            continue
        seen.add(has_loss)
        yield row


class _Judges:
    def __init__(self, alarms: _Alarms, persistence: int) -> None:
        add, info, warning = alarms.add, Severity.INFO, Severity.WARNING
        finite = {
            "loss": FiniteJudge(add, Kind.NON_FINITE, recovered_severity=warning),
            "grad_norm": FiniteJudge(add, Kind.GRADIENT_NON_FINITE, recovered_severity=info),
            "update_norm": FiniteJudge(add, Kind.UPDATE_NON_FINITE, recovered_severity=info),
        }
        judges: dict[str, LossJudge | NormJudge | LossScaleJudge] = {
            "loss": LossJudge(add, persistence=persistence),
            "grad_norm": NormJudge(add, Kind.GRADIENT_NORM_JUMP),
            "update_norm": NormJudge(add, Kind.UPDATE_NORM_JUMP),
            "loss_scale": LossScaleJudge(add),
        }
        self._takers = [
            (Row._fields.index(name), judge) for name, judge in (*finite.items(), *judges.items())
        ]

    def take(self, row: Row) -> None:
        for place, judge in self._takers:
            value = row[place]
            if value is not None:
                judge.take(row.step, value)

    def end_process(self) -> None:
        for _, judge in self._takers:
            judge.end_process()
