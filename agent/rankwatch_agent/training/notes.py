"""What the collector `ranks` notes for traces while it reads black boxes, and the bounded list of it;
histograms of durations, and the traces that show what fell into their buckets.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import RankState
from rankwatch_agent.runtime.collector import Exemplar
from rankwatch_agent.runtime.turns import Places, excess
from rankwatch_agent.training.steps.split import Collective, Interval

BOUNDS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Upper bounds from a 5 ms toy step to one that takes minutes; each about 2.2 times the one before."""
STEP = ""
"""In place of a checkpoint operation, for steps."""
_MAX_HISTOGRAMS = 400
"""Of more, the user with most of them loses the oldest."""


class Durations:
    """One histogram of a run on this node, over all of its ranks."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        """Count one step or operation."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Return cumulative counts by upper bound; the last bound is infinite."""
        total = 0
        found = []
        for bound, count in zip((*BOUNDS_SECONDS, math.inf), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return tuple(found)


class Exemplars:
    """The newest trace in each bucket of each histogram. One collector notes them, another exports them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], dict[int, Exemplar]] = {}
        self._owners: dict[str, int] = {}

    def note(self, run: str, operation: str, exemplar: Exemplar, owner: int) -> None:
        """Note a step (`STEP`), or a checkpoint operation, that is in a trace. owner: user id of the run's
        owner."""
        with self._lock:
            self._owners[run] = owner
            found = self._found.setdefault((run, operation), {})
            found[bisect_left(BOUNDS_SECONDS, exemplar.value)] = exemplar
            if len(self._found) > _MAX_HISTOGRAMS:
                self._forget()

    def _forget(self) -> None:
        for key in excess(self._found, owner=lambda key: self._owners[key[0]], most=_MAX_HISTOGRAMS):
            del self._found[key]
        self._owners = {run: self._owners[run] for run, _ in self._found}

    def of(self, run: str, operation: str) -> Mapping[int, Exemplar]:
        """Return the exemplars by number of the bucket."""
        with self._lock:
            return dict(self._found.get((run, operation), {}))


MAX_NOTES = 20_000
"""Notes that wait: about a minute of 16 ranks with 20 steps a second."""
MAX_PHASES = 256
"""Phases and collectives of a step that are kept."""
_MAX_RECORDED = 64
_END_OF_TIME = 9e9
"""Seconds of Unix time. Two clocks of a box that lies add up to more than 64 bits of nanoseconds hold."""


class Process(NamedTuple):
    """One process of a rank. Its times become Unix time by `wall`."""

    run: str
    """As labels name it."""
    header: Header
    owner: int

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.header.identity.rank

    @property
    def attempt(self) -> int:
        """Number of the attempt."""
        return self.header.identity.attempt

    def wall(self, monotonic: float) -> int:
        """Return Unix nanoseconds that OTLP can carry, the same for every agent that reads the box."""
        return int(min(max(0.0, self.header.wall(monotonic)), _END_OF_TIME) * 1e9)


class Began(NamedTuple):
    """A process was found."""

    process: Process


class StepDone(NamedTuple):
    """A step was settled. Moments are monotonic, in seconds."""

    process: Process
    number: int
    start: float
    end: float
    failed: bool
    phases: Sequence[Interval]
    collectives: Sequence[Collective]
    scalars: Mapping[str, float]
    repeat: int = 0
    """How often the numbers of the attempt's steps have begun again before it."""


class SectionDone(NamedTuple):
    """An evaluation ended."""

    process: Process
    name: str
    start: float
    end: float


class CheckpointDone(NamedTuple):
    """A checkpoint operation ended, or one stage of it."""

    process: Process
    operation: str
    stage: str
    """Empty for the whole operation."""
    start: float
    end: float
    bytes: int
    step: int
    failed: bool


class Resumed(NamedTuple):
    """The rank loaded a checkpoint and goes on."""

    process: Process


class Ended(NamedTuple):
    """A process is over."""

    process: Process
    state: RankState
    moment: float
    """Its last sign of life."""
    open_step: tuple[int, float] | None
    """Number and start of a step that it did not finish."""
    exception: tuple[str, str]
    """Type and message of the exception that ended it; empty where there is none."""


class OpenIncident(NamedTuple):
    """An incident that is open. Moments are monotonic seconds."""

    number: int
    run: str
    kind: str
    since: float
    lost_rank: bool


Note = Began | StepDone | SectionDone | CheckpointDone | Resumed | Ended


class Notes:
    """Notes that wait for the traces to be made. Adding never waits. Thread-safe."""

    def __init__(self, most: int = MAX_NOTES) -> None:
        self.dropped = 0
        self._places = Places(most)
        self._lock = threading.Lock()
        self._notes: list[Note] = []

    def add(self, note: Note) -> None:
        """Add a note; one that has no place is dropped and counted. No user takes all places."""
        with self._lock:
            # The beginning and the end of a process are few, and all else hangs on them.
            if self._places.take(note.process.owner) or isinstance(note, Began | Ended):
                self._notes.append(note)
            else:
                self.dropped += 1

    def take(self) -> list[Note]:
        """Remove and return all notes, in order."""
        with self._lock:
            self._places.free()
            taken, self._notes = self._notes, []
            return taken


class RankNotes:
    """Notes of one rank, across its processes. Called by those that follow its black box."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._process: Process | None = None
        self._recorded: dict[float, tuple[Process, bool]] = {}
        """Start of a step that is not settled -> its process, and whether it failed."""
        self._ended = False

    def begin(self, process: Process) -> None:
        """Note that another process has taken the rank."""
        self._process = process
        self._ended = False
        self._notes.add(Began(process))

    def recorded(self, start: float, *, failed: bool) -> None:
        """Note a recorded step. It is settled later, perhaps once another process has taken the rank."""
        if self._process is not None and len(self._recorded) < _MAX_RECORDED:
            self._recorded[start] = (self._process, failed)

    def step(
        self,
        number: int,
        start: float,
        end: float,
        phases: Sequence[Interval],
        collectives: Sequence[Collective],
        scalars: Mapping[str, float],
    ) -> None:
        """Take a settled step."""
        process, failed = self._recorded.pop(start, (self._process, False))
        if process is not None:
            last = (phases[-MAX_PHASES:], collectives[-MAX_PHASES:])
            self._notes.add(StepDone(process, number, start, end, failed, *last, dict(scalars)))

    def section(self, name: str, start: float, end: float) -> None:
        """Take a phase outside of steps that ended."""
        if self._process is not None:
            self._notes.add(SectionDone(self._process, name, start, end))

    def checkpoint(
        self, operation: str, stage: str, start: float, end: float, size: int, step: int, failed: bool
    ) -> None:
        """Take a checkpoint operation, or a stage of it, that ended."""
        if self._process is not None:
            self._notes.add(CheckpointDone(self._process, operation, stage, start, end, size, step, failed))

    def resumed(self) -> None:
        """Note that the rank loaded a checkpoint."""
        if self._process is not None:
            self._notes.add(Resumed(self._process))

    def ended(
        self,
        state: RankState,
        moment: float,
        open_step: tuple[int, float] | None,
        exception: tuple[str, str],
    ) -> None:
        """Note the end of the process; only the first call for a process counts."""
        if self._process is not None and not self._ended:
            self._ended = True
            self._notes.add(Ended(self._process, state, moment, open_step, exception))
