"""What stops a simulated job: the fault, the calls of the ranks, and their execution until nothing moves.

Groups are named as Megatron names them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.simulation.program import JobShape, Planned, Program, Transfer


class HangKind(StrEnum):
    """What the faulty ranks do, in a step, before an operation of one of their groups."""

    NONE = "none"
    """Nothing: every step is completed."""
    SLEEP = "sleep"
    """Stop before the operation, and stay alive."""
    KILLED = "killed"
    """Stop there for good, and leave no dump."""
    SKIP = "skip"
    """Leave the operation out and go on with the next."""
    OTHER_OPERATION = "other-operation"
    """Call another collective in its place."""
    OTHER_SIZE = "other-size"
    """Call it with half as many elements."""
    STUCK_DATA = "stuck-data"
    """Stop at the beginning of the step."""


class Plane(StrEnum):
    """Kind of process group."""

    DATA = "data"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    WORLD = "world"


DESYNC = frozenset({HangKind.SKIP, HangKind.OTHER_OPERATION, HangKind.OTHER_SIZE})
"""Kinds that make members of a group disagree about what they call."""


@dataclass(frozen=True, kw_only=True)
class HangFault:
    """One kind, on some ranks, at one operation of one step."""

    kind: HangKind = HangKind.SLEEP
    ranks: tuple[int, ...] = (0,)
    plane: Plane = Plane.DATA
    """Group of the faulty operation."""
    step: int = 3
    occurrence: int = 0
    """Index of the operation among those of the step on that plane."""


_DESCRIPTIONS: Mapping[Plane, str] = MappingProxyType(
    {
        Plane.WORLD: "default_pg",
        Plane.DATA: "DATA_PARALLEL_GROUP",
        Plane.TENSOR: "TENSOR_MODEL_PARALLEL_GROUP",
        Plane.PIPELINE: "PIPELINE_MODEL_PARALLEL_GROUP",
    }
)


class Group(NamedTuple):
    """One process group."""

    name: str
    """A number as text, counted over the whole job as torch does."""
    description: str
    plane: Plane
    ranks: tuple[int, ...]


Groups = Mapping[tuple[int, Plane], Group]
"""By rank: each has one on every plane."""


def groups_of(shape: JobShape) -> Groups:
    """All groups of a job."""
    stages, replicas = range(shape.pipeline_parallel), range(shape.data_parallel)
    shards = range(shape.tensor_parallel)
    rank = shape.rank
    members: list[tuple[Plane, Sequence[int]]] = [(Plane.WORLD, range(shape.ranks))]
    members += [(Plane.DATA, [rank(a, b, c) for b in replicas]) for a in stages for c in shards]
    members += [(Plane.TENSOR, [rank(a, b, c) for c in shards]) for a in stages for b in replicas]
    members += [(Plane.PIPELINE, [rank(a, b, c) for a in stages]) for b in replicas for c in shards]
    return {
        (member, plane): Group(str(number), _DESCRIPTIONS[plane], plane, tuple(ranks))
        for number, (plane, ranks) in enumerate(members)
        for member in ranks
    }


_ACTIVATIONS = (2048, 1, 1024)
_BUCKETS = ((6_553_600,), (5_242_880,), (1_310_720,))
"""Elements of the gradient buckets: unequal, so that a bucket too few is seen."""
_NORM = (1,)
_LEAST_GAP_NS, _MOST_GAP_NS = 1_000_000, 5_000_000
"""Compute between two calls of a rank."""
_TRANSFER_NS = 1_000_000
_Key = tuple[str, int, int, int]
"""Group, sender, receiver and number of a message; of a collective, group, -1, -1 and number."""
_PLANES = {Transfer.SHARDS: Plane.TENSOR, Transfer.REPLICAS: Plane.DATA, Transfer.WORLD: Plane.WORLD}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a rank into torch.distributed."""

    step: int
    plane: Plane
    operation: str
    size: tuple[int, ...]
    dtype: str = "BFloat16"
    to_stage: int | None = None
    from_stage: int | None = None
    """The other end of a message; both are None for a collective."""
    tag: tuple[str, int] | None = None
    """Of a message: forward or backward, and microbatch."""


@dataclass(frozen=True, slots=True)
class Calls:
    """All calls of one rank, in order."""

    calls: tuple[Call, ...]
    stops_before: int | None = None
    """Index of the call that it never makes; None: it makes them all."""


def calls_of(shape: JobShape, program: Program, steps: int, rank: int, fault: HangFault) -> Calls:
    """The calls of one rank."""
    stage = shape.place(rank)[0]
    planned = program[stage]
    calls = [call for step in range(steps) for each in planned for call in _calls(each, step)]
    if fault.kind is HangKind.NONE or rank not in fault.ranks:
        return Calls(tuple(calls))
    return _with_fault(calls, fault)


def work_before(program: Sequence[Planned], steps: int) -> list[list[tuple[int, str]]]:
    """For each call of a healthy rank: (step, operation) of its own work since the call before. The last list
    follows the last call."""
    found: list[list[tuple[int, str]]] = [[]]
    for step in range(steps):
        for planned in program:
            calls = sum(1 for _ in _calls(planned, step))
            if not calls:
                found[-1].append((step, planned.operation))
            found.extend([] for _ in range(calls))
    return found


def _calls(planned: Planned, step: int) -> Iterator[Call]:
    message = planned.message
    if planned.transfer is Transfer.SEND and message is not None:
        tag = (message.operation, message.microbatch)
        yield Call(step, Plane.PIPELINE, "send", _ACTIVATIONS, to_stage=message.to_stage, tag=tag)
    elif planned.transfer is Transfer.RECEIVE and message is not None:
        source = message.to_stage - (1 if message.operation == "forward" else -1)
        tag = (message.operation, message.microbatch)
        yield Call(step, Plane.PIPELINE, "recv", _ACTIVATIONS, from_stage=source, tag=tag)
    elif planned.transfer is Transfer.REPLICAS:
        yield from (Call(step, Plane.DATA, "all_reduce", size, "Float") for size in _BUCKETS)
    elif planned.transfer in _PLANES:
        size = _ACTIVATIONS if planned.transfer is Transfer.SHARDS else _NORM
        dtype = "BFloat16" if planned.transfer is Transfer.SHARDS else "Float"
        yield Call(step, _PLANES[planned.transfer], "all_reduce", size, dtype)


def _with_fault(calls: list[Call], fault: HangFault) -> Calls:
    in_step = [index for index, call in enumerate(calls) if call.step == fault.step]
    on_plane = [index for index in in_step if calls[index].plane is fault.plane]
    if fault.kind is HangKind.STUCK_DATA:
        return Calls(tuple(calls), stops_before=in_step[0])
    at = on_plane[min(fault.occurrence, len(on_plane) - 1)]
    if fault.kind is HangKind.SKIP:
        return Calls((*calls[:at], *calls[at + 1 :]))
    if fault.kind is HangKind.OTHER_OPERATION:
        return Calls((*calls[:at], replace(calls[at], operation="_all_gather_base"), *calls[at + 1 :]))
    if fault.kind is HangKind.OTHER_SIZE:
        size = (max(1, calls[at].size[0] // 2), *calls[at].size[1:])
        if size == calls[at].size:
            size = (2, *size[1:])
        return Calls((*calls[:at], replace(calls[at], size=size), *calls[at + 1 :]))
    return Calls(tuple(calls), stops_before=at)


@dataclass(slots=True)
class Track:
    """How far one rank got. Times are nanoseconds since the job began."""

    started_ns: list[int] = field(default_factory=list)
    """Of each call that it reached, in the order of its program."""
    completed_ns: dict[int, int] = field(default_factory=dict)
    """Of each call that ended, by its index."""
    clock_ns: int = 0

    @property
    def blocked(self) -> bool:
        """True if its last call has not ended. Pending sends do not block."""
        return bool(self.started_ns) and len(self.started_ns) - 1 not in self.completed_ns


@dataclass(slots=True)
class _Arrivals:
    """Ranks that reached a collective or one end of a message."""

    calls: dict[int, int] = field(default_factory=dict)
    """Rank -> index of its call."""
    latest_ns: int = 0


class Execution:
    """A collective ends when its whole group has called the same; a receive ends when its send was made.

    Operations of a rank wait for each other across its groups, as the compute between them makes them do.
    """

    def __init__(
        self, shape: JobShape, groups: Groups, programs: Sequence[Calls], random: np.random.Generator
    ) -> None:
        self.tracks = [Track() for _ in programs]
        self._shape, self._groups, self._programs = shape, groups, programs
        self._numbers: defaultdict[tuple[int, str, int, int], int] = defaultdict(int)
        self._arrivals: defaultdict[_Key, _Arrivals] = defaultdict(_Arrivals)
        self._random = random
        self._ready: deque[int] = deque(range(len(programs)))

    def run(self) -> None:
        """Run until every rank has finished, has stopped, or waits for ever."""
        while self._ready:
            self._advance(self._ready.popleft())

    def _advance(self, rank: int) -> None:
        track, program = self.tracks[rank], self._programs[rank]
        gaps = self._random.integers(_LEAST_GAP_NS, _MOST_GAP_NS, len(program.calls) - len(track.started_ns))
        for gap in gaps.tolist():
            index = len(track.started_ns)
            if index == program.stops_before:
                return
            track.clock_ns += gap
            track.started_ns.append(track.clock_ns)
            if not self._call(rank, index, program.calls[index]):
                return

    def _call(self, rank: int, index: int, call: Call) -> bool:
        """Make one call; returns True if the rank goes on at once."""
        group = self._groups[rank, call.plane]
        arrivals = self._arrivals[self._key(rank, group, call)]
        arrivals.calls[rank] = index
        arrivals.latest_ns = max(arrivals.latest_ns, self.tracks[rank].clock_ns)
        waits = call.to_stage is None
        if len(arrivals.calls) < (2 if call.tag is not None else len(group.ranks)):
            return not waits
        if not self._agree(arrivals):
            return False
        self._complete(arrivals, but=rank)
        return True

    def _key(self, rank: int, group: Group, call: Call) -> _Key:
        stage = self._shape.place(rank)[0]
        ends = (-1, -1)
        if call.to_stage is not None:
            ends = (stage, call.to_stage)
        elif call.from_stage is not None:
            ends = (call.from_stage, stage)
        counter = (rank, group.name, *ends)
        self._numbers[counter] += 1
        return (group.name, *ends, self._numbers[counter])

    def _agree(self, arrivals: _Arrivals) -> bool:
        calls = [self._programs[rank].calls[index] for rank, index in arrivals.calls.items()]
        if calls[0].tag is not None:
            return True
        return len({(call.operation, call.size, call.dtype) for call in calls}) == 1

    def _complete(self, arrivals: _Arrivals, but: int) -> None:
        end = arrivals.latest_ns + _TRANSFER_NS
        for rank, index in arrivals.calls.items():
            track = self.tracks[rank]
            track.completed_ns[index] = end
            if index == len(track.started_ns) - 1:  # it waits at this very call; a send is long past
                track.clock_ns = max(track.clock_ns, end)
                if rank != but:
                    self._ready.append(rank)
