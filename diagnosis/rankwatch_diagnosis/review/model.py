"""The review of a run, wherever it was read from: plain values, and what a page and Markdown say alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from rankwatch.conventions.states import GoodputState, RankState
from rankwatch_diagnosis.goodput.model import AttemptGoodput, RunGoodput
from rankwatch_diagnosis.goodput.report import price_head
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.words import counted, duration, moment, share


class EventKind(StrEnum):
    """What kind of thing happened. The order is that of the lanes of the time line."""

    ATTEMPT = "attempt"
    INCIDENT = "incident"
    ALERT = "alert"
    FAILURE = "failure"
    STALL = "stall"
    SLOW_STEP = "slow step"
    LOSS = "loss"
    CHECKPOINT = "checkpoint"
    HARDWARE = "hardware"


class Event(NamedTuple):
    """Something that happened at a moment."""

    at: float
    """Unix time."""
    kind: EventKind
    severity: Severity
    text: str
    source: str
    """Source that shows it: a black box, an evidence bundle, an alert, a series."""
    rank: int | None = None
    node: str = ""
    until: float | None = None
    """Unix time of its end; None for a moment, or where the end is not known."""


class Judgement(NamedTuple):
    """What was judged, and by what."""

    subject: str
    severity: Severity
    sentence: str
    evidence: tuple[str, ...] = ()


class RankPhases(NamedTuple):
    """Where a step of a rank goes."""

    rank: int
    node: str
    seconds: Mapping[str, float]
    """Of a mean step, by phase. From Prometheus the sum over the run: only the shares count."""

    @property
    def total(self) -> float:
        """Of all phases."""
        return sum(self.seconds.values())


class LossMark(NamedTuple):
    """An alarm on the curve."""

    step: float
    text: str
    severity: Severity


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The loss of one rank."""

    rank: int
    axis: str
    """Meaning of the first number of a point: `step`, or `time` in Unix seconds."""
    points: tuple[tuple[float, float], ...]
    """Thinned out, with the extremes kept; a loss may be NaN or infinite."""
    marks: tuple[LossMark, ...] = ()


class CheckpointSeen(NamedTuple):
    """One operation on one checkpoint, over all ranks that are seen."""

    ended: float
    """Unix time at which the last rank was done."""
    operation: str
    step: int
    ranks: int
    failed: int
    """Ranks on which it failed."""
    seconds: float
    """On the slowest rank."""
    blocking_seconds: float
    """For which it held up training, on the rank with the most."""
    slowest_rank: int
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReview:
    """All that a reader of a report is told about a run."""

    run: str
    source: str
    result: str
    """In a word: the state of the run."""
    severity: Severity
    why: str
    """One sentence."""
    running: bool
    started: float | None
    """Unix time; None where it is not known."""
    ended: float | None
    """Unix time of the last sign of life."""
    world_size: int
    nodes: tuple[str, ...] = ()
    steps: str = ""
    """How far it came, in words."""
    goodput: RunGoodput | None = None
    events: tuple[Event, ...] = ()
    """In the order of time, as many as are shown."""
    events_left_out: int = 0
    judgements: tuple[Judgement, ...] = ()
    phases: tuple[RankPhases, ...] = ()
    loss: LossCurve | None = None
    checkpoints: tuple[CheckpointSeen, ...] = ()
    """The newest first."""
    checkpoint_summary: str = ""
    unseen: tuple[str, ...] = ()
    """Things that could not be seen, in words."""

    def of_kind(self, *kinds: EventKind) -> tuple[Event, ...]:
        """Return the events of these kinds."""
        return tuple(each for each in self.events if each.kind in kinds)


def attempt_events(attempts: Iterable[AttemptGoodput], source: str) -> Iterator[Event]:
    """Yield the start of each attempt and its end, if that is known."""
    for each in attempts:
        name, until = f"attempt {each.number + 1}", None if each.running else each.ended
        steps = "" if each.first_step is None else f", its first step is {each.first_step}"
        text = f"{name} starts with {each.world_size or '?'} ranks{steps}"
        yield Event(each.started, EventKind.ATTEMPT, Severity.INFO, text, source, until=until)
        if not each.running and each.ended_how:
            well = each.ended_how.startswith(RankState.FINISHED.value)
            severity = Severity.INFO if well else Severity.WARNING
            text = f"{name} ends: {each.ended_how}"
            yield Event(each.ended, EventKind.ATTEMPT, severity, text, source)


MOST_EVENTS = 400
_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def shown_events(events: Iterable[Event]) -> tuple[tuple[Event, ...], int]:
    """Return the most severe ones in the order of time, and how many are left out."""
    found = sorted(events, key=lambda each: (_ORDER[each.severity], -each.at))
    kept = sorted(found[:MOST_EVENTS], key=lambda each: (each.at, _ORDER[each.severity]))
    return tuple(kept), len(found) - len(kept)


MOST_POINTS = 600


def thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Keep at most MOST_POINTS of the points: of each stretch the lowest, the highest and one not finite."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    length = math.ceil(len(points) / (MOST_POINTS // 3))
    found: list[tuple[float, float]] = []
    for begin in range(0, len(points), length):
        part = points[begin : begin + length]
        finite = [each for each in part if math.isfinite(each[1])]
        odd = [each for each in part if not math.isfinite(each[1])][:1]
        ends = {min(finite, key=itemgetter(1)), max(finite, key=itemgetter(1))} if finite else ()
        found += sorted([*ends, *odd])
    return tuple(found)


QUESTIONS = (
    "Who or what noticed first, and how long after it began?",
    "What was changed before: code, data, image, driver, node, network?",
    "Did the alert, this report and the runbook name the right rank and cause? What was missing?",
    "What was done, by whom, and which step helped?",
    "Who was affected: deadlines, other runs, customers?",
    "Why was it possible, and why was it not caught earlier?",
    "What will be changed so that it does not happen again, or is found sooner? Who does it, and by when?",
)
"""Questions that only people can answer."""
_SECONDS_PER_HOUR = 3600.0


def facts(review: RunReview) -> dict[str, str]:
    """Return the head of a report: names and values."""
    goodput = review.goodput
    ended = "now, it runs" if review.running else _moment(review.ended)
    found = {
        "result": review.result,
        "started": _moment(review.started),
        "ended": ended,
        "lasted": _lasted(review),
        "ranks": str(review.world_size or "not known"),
        "nodes": ", ".join(review.nodes[:4]) + (" and more" if len(review.nodes) > 4 else "") or "not known",
        "attempts": "not known" if goodput is None else str(len(goodput.attempts)),
        "progress": review.steps or "not known",
        "goodput": share(None if goodput is None else goodput.ettr),
    }
    costs = () if goodput is None else goodput.costs
    cost = ", ".join(f"{each.total:,.2f} {price_head(each)}" for each in costs)
    return {**found, "cost": cost or "unknown: no price"}


def impact(goodput: RunGoodput | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows of what was lost: state, rank-hours, share, money. A rank has one GPU."""
    if goodput is None or goodput.requested <= 0.0:
        return
    lost = [each for each in GoodputState if each is not GoodputState.PRODUCTIVE and goodput[each] > 0.0]
    for state in sorted(lost, key=lambda each: -goodput[each]):
        yield _row(goodput, state.value, (state,))
    yield _row(goodput, "all that was lost", tuple(lost))
    yield _row(goodput, "productive", (GoodputState.PRODUCTIVE,))


def _row(goodput: RunGoodput, name: str, states: tuple[GoodputState, ...]) -> tuple[str, str, str, str]:
    seconds = sum(goodput[each] for each in states)
    money = ", ".join(
        f"{sum(cost.by_state.get(each, 0.0) for each in states):,.2f} {cost.currency}"
        for cost in goodput.costs
    )
    exact = seconds / _SECONDS_PER_HOUR
    hours = (
        f"{exact:,.3g}" if 0.001 <= exact < 1000.0 else f"{exact:,.3f}" if exact < 1.0 else f"{exact:,.0f}"
    )
    return name, hours, share(seconds / goodput.requested), money or "unknown"


def when(event: Event) -> str:
    """Say when an event was, and how long it lasted."""
    if event.until is None or event.until - event.at < 1.0:
        return moment(event.at)
    return f"{moment(event.at)}, for {duration(event.until - event.at)}"


def where(event: Event) -> str:
    """Name rank and node, as far as they are known."""
    rank = f"rank {event.rank}" if event.rank is not None else ""
    return " on ".join(filter(None, (rank, event.node)))


def checkpoint_row(seen: CheckpointSeen) -> tuple[str, str, str, str, str, str]:
    """Return when, operation, step, result, seconds with those that blocked, path."""
    result = "ok" if not seen.failed else f"failed on {seen.failed}"
    ranks = f"{result}, {counted(seen.ranks, 'rank')}"
    took = f"{duration(seen.seconds)} on rank {seen.slowest_rank}"
    took += f", {duration(seen.blocking_seconds)} of it blocking"
    return moment(seen.ended), seen.operation, str(seen.step), ranks, took, seen.path


def _moment(wall: float | None) -> str:
    return "not known" if wall is None else moment(wall)


def _lasted(review: RunReview) -> str:
    if review.started is None or review.ended is None:
        return "not known"
    return duration(max(0.0, review.ended - review.started))
