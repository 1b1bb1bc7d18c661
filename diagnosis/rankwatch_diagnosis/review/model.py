"""The review of a run, wherever it was read from: plain values for a page, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rankwatch_diagnosis.goodput.model import RunGoodput
from rankwatch_diagnosis.loss.anomaly import Severity


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
    """What shows it: a black box, an evidence bundle, an alert, a series."""
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
    """What the first number of a point is: `step`, or `time` in Unix seconds."""
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
    """What could not be seen, in words."""

    def of_kind(self, *kinds: EventKind) -> tuple[Event, ...]:
        """The events of these kinds."""
        return tuple(each for each in self.events if each.kind in kinds)


MOST_EVENTS = 400
_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass
class Events:
    """Events while they are collected."""

    found: list[Event] = field(default_factory=list)

    def shown(self) -> tuple[tuple[Event, ...], int]:
        """The most severe ones in the order of time, and how many are left out."""
        kept = sorted(self.found, key=lambda each: (_ORDER[each.severity], -each.at))[:MOST_EVENTS]
        ordered = sorted(kept, key=lambda each: (each.at, _ORDER[each.severity]))
        return tuple(ordered), len(self.found) - len(kept)
