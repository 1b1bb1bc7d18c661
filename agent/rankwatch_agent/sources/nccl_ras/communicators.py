"""One answer of RAS, reduced to what is judged and exported; the same for both of its forms."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

MAX_NAMED_RANKS = 8
"""Ranks of one communicator that are named. Where more are behind, none of them stands out."""
MAX_COMMUNICATORS = 8192
"""Of one job; 16,384 ranks in tensor-parallel groups of eight have about 2,100."""


class Absence(StrEnum):
    """Why RAS knows nothing of a rank."""

    DEAD = "dead"
    """RAS could not reach the process for 60 seconds."""
    UNRESPONSIVE = "unresponsive"
    """The process did not answer in time."""
    LEFT = "left"
    """The process answered and knows no such communicator: it has destroyed it, or is not there yet."""


class Process(NamedTuple):
    """Who works for a rank: address of the host, process id as the process sees it, CUDA device."""

    host: str
    pid: int
    device: int


class LateRank(NamedTuple):
    """A rank that has launched less than others of its communicator."""

    rank: int
    """In the communicator."""
    behind: int
    """Launches, of the kind of collective in which it is furthest behind."""
    process: Process | None = None


class MissingRank(NamedTuple):
    """A rank of which RAS knows nothing."""

    rank: int
    """In the communicator."""
    absence: Absence
    process: Process | None = None


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """One communicator, as all of its ranks together tell it."""

    name: str
    """NCCL's hash, sixteen hexadecimal digits."""
    size: int
    """Ranks it was made with."""
    mark: Hashable
    """Equal in two answers: nothing was launched in between."""
    missing: int = 0
    absences: frozenset[Absence] = frozenset()
    named_missing: tuple[MissingRank, ...] = ()
    failed: bool = False
    """A rank has an error of NCCL."""
    starting: bool = False
    """A rank is not initialised yet."""
    ending: bool = False
    """All ranks are about to destroy it, or have aborted it."""
    uneven: bool = False
    """Its ranks differ in what they launched, or in their status."""
    spread: int | None = None
    """Launches between the rank furthest ahead and the one furthest behind; None where not told."""
    launches: int | None = None
    """Of the rank furthest ahead, all kinds of collectives together; None where not told."""
    behind: int = 0
    """Ranks that have launched less than another."""
    late: tuple[LateRank, ...] = ()
    """Those ranks; empty where there are more than MAX_NAMED_RANKS, or where RAS does not name them."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one RAS service told."""

    version: str
    """Of NCCL."""
    communicators: tuple[Communicator, ...]
    unnamed: int = 0
    """Communicators of which only their number is told: the text form says nothing more of sound ones."""
    timeouts: int = 0
    """Connections that RAS gave up while it gathered the answer."""
    processes_missing: Mapping[Absence, int] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    """Of all ranks; empty where the form does not tell them."""
    largest: Mapping[Process, int] = field(default_factory=dict)
    """Process -> rank in the one largest communicator; empty where not told or where there are several that
    differ."""


SUSPECT_POLLS = 2
"""Answers without a change from which a communicator is suspect."""
STUCK_POLLS = 5
"""Answers without a change from which it is stuck: five minutes at the default interval. Ray takes ten
minutes, as 40 answers 15 seconds apart (ray-project/ray#64928)."""


class State(StrEnum):
    """States of a communicator, the best first; the order is that of SGLang (sgl-project/sglang#32929)."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    STUCK = "stuck"
    ERROR = "error"
    DEAD = "dead"


class Reason(StrEnum):
    """Why a communicator is in its state."""

    MOVING = "moving"
    """Something was launched since the answer before."""
    IDLE = "idle"
    """Nothing was launched on it, while others of the job moved."""
    FIRST_ANSWER = "first_answer"
    ENDING = "ending"
    """Its ranks are about to destroy it, or have aborted it."""
    STARTING = "starting"
    """It stands still before all of its ranks are initialised."""
    DESYNC = "desync"
    """Its ranks differ in what they launched, and stay so."""
    BELOW_LAUNCH = "below_launch"
    """Its ranks have launched the same, and nothing more; nor does any other communicator of the job move."""
    UNRESPONSIVE = "unresponsive"
    """Processes did not answer RAS."""
    NCCL_ERROR = "nccl_error"
    PROCESS_DEAD = "process_dead"


SEVERITY = tuple(State)
"""The best state first."""


class Judged(NamedTuple):
    """A communicator and what is held of it."""

    communicator: Communicator
    state: State
    reason: Reason


class Judge:
    """Remembers the answers of one RAS service, as far as the next one needs them."""

    def __init__(self) -> None:
        self._marks: dict[str, Hashable] = {}
        self._unchanged: dict[str, int] = {}
        self._job_unchanged = 0

    def judge(self, report: Report) -> list[Judged]:
        """The communicators of this answer; the worst first, then the largest."""
        marks = {each.name: each.mark for each in report.communicators}
        self._unchanged = {
            name: self._unchanged.get(name, 0) + 1 if self._marks[name] == mark else 0
            for name, mark in marks.items()
            if name in self._marks
        }
        # Where launches are not told, nobody knows whether the job moves.
        still = marks == self._marks and not report.unnamed
        self._job_unchanged = self._job_unchanged + 1 if still else 0
        self._marks = marks
        found = [Judged(each, *self._state(each)) for each in report.communicators]
        return sorted(found, key=_importance)

    def _state(self, each: Communicator) -> tuple[State, Reason]:
        return next(self._findings(each))

    def _findings(self, each: Communicator) -> Iterator[tuple[State, Reason]]:
        """What holds, the gravest first; there is always one."""
        unchanged = self._unchanged.get(each.name)
        if Absence.DEAD in each.absences:
            yield State.DEAD, Reason.PROCESS_DEAD
        if each.failed:
            yield State.ERROR, Reason.NCCL_ERROR
        if each.uneven and unchanged:
            yield self._still(unchanged, self._job_unchanged), Reason.DESYNC
        if Absence.UNRESPONSIVE in each.absences:
            yield State.SUSPECT, Reason.UNRESPONSIVE
        if each.ending:
            yield State.UNKNOWN, Reason.ENDING
        if unchanged is None:
            yield State.UNKNOWN, Reason.FIRST_ANSWER
        elif not unchanged:
            yield State.HEALTHY, Reason.MOVING
        elif not self._job_unchanged:
            yield State.HEALTHY, Reason.IDLE
        still = self._still(min(unchanged or 0, self._job_unchanged), self._job_unchanged)
        yield still, Reason.STARTING if each.starting else Reason.BELOW_LAUNCH

    @staticmethod
    def _still(unchanged: int, job_unchanged: int) -> State:
        if unchanged < SUSPECT_POLLS:
            return State.UNKNOWN
        return State.STUCK if min(unchanged, job_unchanged) >= STUCK_POLLS else State.SUSPECT


def _importance(judged: Judged) -> tuple[int, int, str]:
    return -SEVERITY.index(judged.state), -judged.communicator.size, judged.communicator.name
