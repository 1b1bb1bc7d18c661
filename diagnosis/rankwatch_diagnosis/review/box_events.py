"""What the black boxes of a run show to have happened, and when; the curve of the loss with its alarms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rankwatch.conventions import LOSS
from rankwatch.conventions.states import RankState
from rankwatch_diagnosis.loss.anomaly import Anomaly, Severity
from rankwatch_diagnosis.loss.detection import LossVerdict
from rankwatch_diagnosis.review.model import Event, EventKind, LossCurve, LossMark
from rankwatch_diagnosis.run.box_records import checkpoint_operations, scalars_of, steps_of
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.run.report import waiting_words
from rankwatch_diagnosis.run.verdict import RunVerdict
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.words import listed

_SOURCE = "black boxes"
_MOST_FAILURES = 16
_MOST_OF_A_KIND = 40


StepMoments = dict[int, tuple[float, float]]
"""Number of a step -> when it began and ended, in Unix time, as the first rank that holds it has it."""


def step_moments(boxes: Boxes) -> StepMoments:
    """Return the moments of the steps that a box holds."""
    found: StepMoments = {}
    for box in boxes.by_rank.values():
        for each in steps_of(box):
            found.setdefault(each.number, (box.wall(each.start), box.wall(each.end)))
    return found


def box_events(boxes: Boxes, verdict: RunVerdict) -> Iterator[Event]:
    """Ends of ranks, a stall, the start of a slowdown, single long steps, the loss, failed checkpoints."""
    moments = step_moments(boxes)
    yield from _failures(boxes, verdict)
    yield from _stall(boxes, verdict)
    yield from _slowdown(verdict, moments)
    yield from _loss(verdict, moments)
    for box in (*boxes.earlier, *boxes.by_rank.values()):
        yield from _checkpoints(box)


def _failures(boxes: Boxes, verdict: RunVerdict) -> Iterator[Event]:
    bad = (RankState.LOST, RankState.FAILED) if boxes.liveness_known else (RankState.FAILED,)
    ended = [each for each in boxes.by_rank.values() if each.state in bad]
    ended.sort(key=lambda each: (each.rank not in verdict.ranks, each.wall(each.last_sign)))
    for box in ended[:_MOST_FAILURES]:
        victim = " in a collective" if box.failed_in_collective else ""
        how = f": {box.ended_by}" if box.ended_by else ""
        text = f"rank {box.rank} {box.state.value}{victim}{how}"
        severity = Severity.CRITICAL if box.rank in verdict.ranks else Severity.WARNING
        yield Event(
            box.wall(box.last_sign),
            EventKind.FAILURE,
            severity,
            text,
            _SOURCE,
            rank=box.rank,
            node=box.header.identity.host,
        )


def _stall(boxes: Boxes, verdict: RunVerdict) -> Iterator[Event]:
    if not verdict.hang.state.is_stall:
        return
    since = max(each.wall(each.last_progress) for each in boxes.by_rank.values())
    until = boxes.moment
    yield Event(since, EventKind.STALL, Severity.CRITICAL, waiting_words(verdict), _SOURCE, until=until)


def _slowdown(verdict: RunVerdict, moments: StepMoments) -> Iterator[Event]:
    found = verdict.straggler
    if found is None:
        return
    for cause in found.causes:
        began, ended = moments.get(cause.first_step), moments.get(cause.last_step)
        if began is None or (cause.slowdown or 1.0) < DEFAULT.least_slowdown:
            continue
        whom = f" on {listed(cause.ranks)}" if cause.ranks else ""
        text = f"{cause.cause_and_phase}{whom} from step {cause.first_step} to {cause.last_step}"
        until = ended[1] if ended is not None else None
        yield Event(began[0], EventKind.SLOW_STEP, Severity.WARNING, text, _SOURCE, until=until)
    for each in found.events[:_MOST_OF_A_KIND]:
        step, ranks = each["step"], each["ranks"]
        when = moments.get(step) if isinstance(step, int) else None
        if when is not None:
            late = f" on {listed(tuple(ranks))}" if isinstance(ranks, list) and ranks else ""
            text = f"step {step} lost {each['lost_seconds']:,.1f} s in {each['operation']}{late}"
            yield Event(when[0], EventKind.SLOW_STEP, Severity.INFO, text, _SOURCE, until=when[1])


def _loss(verdict: RunVerdict, moments: StepMoments) -> Iterator[Event]:
    if verdict.loss is None:
        return
    rank, found = verdict.loss
    for each in found.anomalies[-_MOST_OF_A_KIND:]:
        when = moments.get(each.step)
        if when is not None:
            yield Event(when[1], EventKind.LOSS, each.severity, anomaly_words(each), _SOURCE, rank=rank)


def _checkpoints(box: Box) -> Iterator[Event]:
    for each in checkpoint_operations(box):
        at = box.wall(each.end)
        if each.failed:
            text = f"{each.name} of the checkpoint of step {each.step} failed on rank {box.rank}"
            yield Event(at, EventKind.CHECKPOINT, Severity.WARNING, text, _SOURCE, rank=box.rank)
        elif each.name == "load" and box.rank == 0:
            text = f"resumed from the checkpoint of step {each.step}"
            yield Event(at, EventKind.CHECKPOINT, Severity.INFO, text, _SOURCE, rank=box.rank)


MOST_POINTS = 600
MOST_MARKS = 40


def loss_curve(box: Box, verdict: LossVerdict) -> LossCurve:
    """The loss that a rank has reported, with the anomalies that were found in it."""
    points = [(float(step), value) for _, step, value in scalars_of(box, LOSS)]
    marks = [LossMark(each.step, anomaly_words(each), each.severity) for each in verdict.anomalies]
    return LossCurve(rank=box.rank, axis="step", points=thinned(points), marks=tuple(marks[-MOST_MARKS:]))


def anomaly_words(anomaly: Anomaly) -> str:
    """What happened, at which step, and how far from what was expected."""
    what = anomaly.kind.value.replace("_", " ")
    at = f"{what} at step {anomaly.step}"
    if not math.isfinite(anomaly.value) or not math.isfinite(anomaly.expected):
        return f"{at}: {anomaly.value:g}"
    lasted = f", until step {anomaly.last_step}" if anomaly.last_step > anomaly.step else ""
    return f"{at}: {anomaly.value:.4g} instead of {anomaly.expected:.4g}{lasted}"


def thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most MOST_POINTS of the points: of each stretch the lowest and the highest, and all that are not
    finite as one."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    length = math.ceil(len(points) / (MOST_POINTS // 3))
    found: list[tuple[float, float]] = []
    for begin in range(0, len(points), length):
        part = points[begin : begin + length]
        finite = [each for each in part if math.isfinite(each[1])]
        odd = [each for each in part if not math.isfinite(each[1])][:1]
        ends = {min(finite, key=_value), max(finite, key=_value)} if finite else ()
        found += sorted([*ends, *odd])
    return tuple(found)


def _value(point: tuple[float, float]) -> float:
    return point[1]
