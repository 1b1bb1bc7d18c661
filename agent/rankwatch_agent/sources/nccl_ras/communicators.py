"""The report of a RAS service, the same for both forms of its answer, and the health of each communicator.

Launch counts that differ mean little by themselves: in a working run they differ most of the time. Counts
that differ and stay the same, while nothing else in the job moves, are a desync. Counts that are equal and
stay the same mean that all ranks have launched the operation at which they stand: the devices or the network
hold it up, or the hosts have nothing to do. Only the flight recorder tells these apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

MAX_NAMED_RANKS = 8
"""Most ranks of one communicator that are named. Where more are behind, none of them stands out."""
MAX_COMMUNICATORS = 8192
"""Of one job. 16,384 ranks in tensor-parallel groups of eight have about 2,100."""
SUSPECT_POLLS = 2
"""Unchanged answers after which a communicator is suspect."""
STUCK_POLLS = 5
"""Unchanged answers after which it is stuck: five minutes at the default interval. Ray waits ten minutes, as
40 answers 15 seconds apart (ray-project/ray#64928)."""


class Absence(StrEnum):
    """Why RAS has no data of a rank."""

    DEAD = "dead"
    """RAS could not reach the process for 60 seconds."""
    UNRESPONSIVE = "unresponsive"
    """The process did not answer in time."""
    LEFT = "left"
    """The process answered without this communicator: it has destroyed it, or not yet created it."""


class Process(NamedTuple):
    """The process of a rank: address of its host, process id as the process sees it, CUDA device."""

    host: str
    pid: int
    device: int


class BehindRank(NamedTuple):
    """A rank that has launched fewer collectives than others of its communicator."""

    rank: int
    """In the communicator."""
    launches: int
    """How many it is behind, in the kind of collective where it is furthest behind."""
    process: Process | None = None


class MissingRank(NamedTuple):
    """A rank of which RAS has no data."""

    rank: int
    """In the communicator."""
    absence: Absence
    process: Process | None = None


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """One communicator, as all of its ranks together report it."""

    name: str
    """NCCL's hash, sixteen hexadecimal digits."""
    size: int
    """Number of its ranks."""
    fingerprint: Hashable
    """Equal in two answers if nothing was launched in between."""
    missing: int = 0
    absences: frozenset[Absence] = frozenset()
    named_missing: tuple[MissingRank, ...] = ()
    failed: bool = False
    """A rank reports an NCCL error."""
    starting: bool = False
    """A rank is not initialised yet."""
    ending: bool = False
    """All ranks are destroying it or have aborted it."""
    uneven: bool = False
    """Its ranks differ in their launches or their status."""
    spread: int | None = None
    """Launches between the rank furthest ahead and the one furthest behind; None where unknown."""
    launches: int | None = None
    """Launches of the rank furthest ahead, all kinds of collectives together; None where unknown."""
    behind: int = 0
    """Ranks that have launched fewer collectives than another."""
    named_behind: tuple[BehindRank, ...] = ()
    """Those ranks; empty where they are more than MAX_NAMED_RANKS, or where RAS does not name them."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """One answer of a RAS service."""

    communicators: tuple[Communicator, ...]
    unnamed: int = 0
    """Communicators known by number only: the text form does not list the healthy ones."""
    processes_missing: Mapping[Absence, int] = field(default_factory=dict)
    pids: frozenset[int] = frozenset()
    """Of all ranks; empty in the text form."""
    largest: Mapping[Process, int] = field(default_factory=dict)
    """Process -> rank in the largest communicator; empty where unknown, or where the largest ones differ."""


class State(StrEnum):
    """States of a communicator, best first, in the order of SGLang (sgl-project/sglang#32929)."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    STUCK = "stuck"
    ERROR = "error"
    DEAD = "dead"


class Reason(StrEnum):
    """Why a communicator is in its state."""

    MOVING = "moving"
    """Something was launched since the previous answer."""
    IDLE = "idle"
    """Nothing was launched on it, while other communicators of the job moved."""
    FIRST_ANSWER = "first_answer"
    ENDING = "ending"
    """Its ranks are destroying it or have aborted it."""
    STARTING = "starting"
    """It stands still, and not all of its ranks are initialised."""
    DESYNC = "desync"
    """Its ranks differ in their launches, and stay so."""
    BELOW_LAUNCH = "below_launch"
    """Its ranks have launched the same and nothing since, and no other communicator of the job moves."""
    UNRESPONSIVE = "unresponsive"
    """Processes did not answer RAS."""
    NCCL_ERROR = "nccl_error"
    PROCESS_DEAD = "process_dead"


SEVERITY = tuple(State)
"""Best first."""


class CommunicatorHealth(NamedTuple):
    """A communicator with its state and the reason for it."""

    communicator: Communicator
    state: State
    reason: Reason


class HealthTracker:
    """Compares each answer of one RAS service with the previous ones."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, Hashable] = {}
        self._unchanged: dict[str, int] = {}
        self._job_unchanged = 0

    def update(self, report: Report) -> list[CommunicatorHealth]:
        """Return the health of the communicators in this answer, the worst first, then the largest."""
        fingerprints = {each.name: each.fingerprint for each in report.communicators}
        self._unchanged = {
            name: self._unchanged.get(name, 0) + 1 if self._fingerprints[name] == fingerprint else 0
            for name, fingerprint in fingerprints.items()
            if name in self._fingerprints
        }
        # Without the launches of all communicators it is unknown whether the job moves.
        still = fingerprints == self._fingerprints and not report.unnamed
        self._job_unchanged = self._job_unchanged + 1 if still else 0
        self._fingerprints = fingerprints
        found = [CommunicatorHealth(each, *self._state(each)) for each in report.communicators]
        return sorted(found, key=_worst_first)

    def _state(self, each: Communicator) -> tuple[State, Reason]:
        """Return the worst state that applies."""
        unchanged = self._unchanged.get(each.name)
        if Absence.DEAD in each.absences:
            return State.DEAD, Reason.PROCESS_DEAD
        if each.failed:
            return State.ERROR, Reason.NCCL_ERROR
        if each.uneven and unchanged:
            return self._standing(unchanged), Reason.DESYNC
        if Absence.UNRESPONSIVE in each.absences:
            return State.SUSPECT, Reason.UNRESPONSIVE
        if each.ending:
            return State.UNKNOWN, Reason.ENDING
        if unchanged is None:
            return State.UNKNOWN, Reason.FIRST_ANSWER
        if not unchanged:
            return State.HEALTHY, Reason.MOVING
        if not self._job_unchanged:
            return State.HEALTHY, Reason.IDLE
        state = self._standing(min(unchanged, self._job_unchanged))
        return state, Reason.STARTING if each.starting else Reason.BELOW_LAUNCH

    def _standing(self, unchanged: int) -> State:
        """Return the state after `unchanged` answers. Nothing is stuck while the job moves."""
        if unchanged < SUSPECT_POLLS:
            return State.UNKNOWN
        return State.STUCK if min(unchanged, self._job_unchanged) >= STUCK_POLLS else State.SUSPECT


def _worst_first(health: CommunicatorHealth) -> tuple[int, int, str]:
    return -SEVERITY.index(health.state), -health.communicator.size, health.communicator.name
