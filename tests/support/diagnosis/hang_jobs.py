"""Small distributed jobs, run on paper until they stand still, and the flight recorders they leave.

Each rank has a program and two pointers into it: what its host has enqueued and what its device has finished.
A collective completes when all members are at it with the same call, a send when its receive is there, and a
batch of sends and receives when all of them have met their counterparts.

The dumps have the form that ProcessGroupNCCL.cpp of PyTorch gives them. `pointToPoint` records the parts of a
batch with null events, so they stay `scheduled`, under one `p2p_seq_id`; `endCoalescing` calls `initWork`,
which records `nccl:coalesced` without tensors, with the numbers of the last part and with
`isP2POp(OpType::COALESCED)`, which is false. Uneven collectives leave parts of one number and an entry that
closes them, too, named by its `OpType`: `allgather` calls `_broadcast_oop` for each member, `reduce_scatter`
calls `_reduce_oop`. FlightRecorderDetail.hpp, `getCollectiveTrace`, derives the state from the events alone.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

from rankwatch_agent.training.flight_recorder.parse import parse_document
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.job import HangSnapshot
from rankwatch_diagnosis.hang.verdict import HangVerdict, State

START_NS = 1_758_610_505_000_000_000


def parsed(document: object, rank: int) -> HangSnapshot:
    """The snapshot in a loaded dump."""
    return snapshot_of(parse_document(document), rank)


def judged(dumps: Mapping[int, object], **how: Any) -> HangVerdict:
    """The verdict on loaded dumps by rank."""
    return diagnose([parsed(each, rank) for rank, each in dumps.items()], **how)


def named(dumps: Mapping[int, object], **how: Any) -> tuple[State, tuple[int, ...]]:
    """State and ranks of the verdict on loaded dumps."""
    verdict = judged(dumps, **how)
    return verdict.state, verdict.ranks


def timed(dumps: Mapping[int, dict[str, Any]], later: float) -> list[HangSnapshot]:
    """The snapshots, taken so many seconds after the newest call."""
    newest = max(entry["time_created_ns"] for each in dumps.values() for entry in each["entries"]) / 1e9
    return [parsed(each | {"time_seconds": newest + later}, rank) for rank, each in dumps.items()]


def hung_job(shape: Shape, rank: int, place: int, *, kind: str = "asleep", **options: Any) -> HungJob:
    """A job that stands because of a fault of this rank, at the call so far into those that can have it."""
    job = HungJob(shape, **{"seed": 3} | options)
    job.run(Fault(kind, (rank,), job.places(rank, kind)[place]))
    return job


def finished_job(shape: Shape) -> HungJob:
    """A job at its end."""
    job = HungJob(shape, 3, lead=0)
    job.run(Fault("none", ()))
    return job


class Op(NamedTuple):
    """One call: `group` is the kind of group, `peer` a rank of the job for sends and receives."""

    name: str
    group: str
    size: int = 1024
    peer: int = -1
    source: int = -1
    """Of a send: the rank from which the same batch receives."""

    @property
    def messages(self) -> tuple[tuple[str, int], ...]:
        """Name and peer of each send and receive of the call."""
        first = ((self.name, self.peer),) if self.peer >= 0 else ()
        return (*first, ("recv", self.source)) if self.source >= 0 else first


class Uneven(StrEnum):
    """The collective whose tensors differ in size, by the operation that each of its parts is."""

    ALLGATHER = "_broadcast_oop"
    REDUCE_SCATTER = "_reduce_oop"


class Shape(NamedTuple):
    """Ranks in each dimension; tensor parallel neighbours first, pipeline stages last, as in Megatron."""

    dp: int
    pp: int = 1
    tp: int = 1

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp

    def stage(self, rank: int) -> int:
        return rank // (self.dp * self.tp)

    @cache  # noqa: B019 - a tuple of three numbers, not a thing to be freed
    def members(self, group: str, rank: int) -> tuple[int, ...]:
        stage, rest = divmod(rank, self.dp * self.tp)
        replica, tensor = divmod(rest, self.tp)
        everyone = range(self.world)
        if group == "world":
            return tuple(everyone)
        if group == "tp":
            return tuple(range(rank - tensor, rank - tensor + self.tp))
        if group == "dp":
            return tuple(stage * self.dp * self.tp + each * self.tp + tensor for each in range(self.dp))
        return tuple(each * self.dp * self.tp + replica * self.tp + tensor for each in range(self.pp))


@dataclass
class Fault:
    """What goes wrong on a rank at one place of its program."""

    kind: str
    """asleep, killed, loading, device, skip, other, size, dtype."""
    ranks: tuple[int, ...]
    index: int = 0


@dataclass
class HungJob:
    """A job of this shape.

    lead: operations that a host may be ahead of its device, 0 for blocking calls.
    only_active: the dumps leave out what is complete, as some tools ask.
    receives_early: a rank that sleeps has posted its next receive before.
    batched: messages are called by `batch_isend_irecv`, else by `isend` and `irecv` one by one.
    interleaved: pipelines alternate forward and backward, with a send and a receive in one batch.
    messages_in: the kind of group of sends and receives, "pp" or "world".
    uneven: a collective of tensor-parallel neighbours whose tensors differ in size.
    """

    shape: Shape
    seed: int
    names: str = "megatron"
    lead: int = 8
    steps: int = 3
    microbatches: int = 2
    only_active: bool = False
    receives_early: bool = False
    batched: bool = True
    interleaved: bool = False
    messages_in: str = "pp"
    uneven: Uneven | None = None
    programs: list[list[Op]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    enqueued: list[int] = field(default_factory=list)
    dead: frozenset[int] = frozenset()
    wrong_type: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = 1
        self.programs = [self._program(rank) for rank in range(self.shape.world)]

    def _program(self, rank: int) -> list[Op]:
        shape, ops = self.shape, []
        stage = shape.stage(rank)
        for _ in range(self.steps):
            ops += self._one_forward_one_backward(rank) if self.interleaved else self._all_forward(rank)
            if shape.dp > 1:
                ops += [Op("all_reduce", "dp", size) for size in (4096, 2048 + stage)]
            ops.append(Op("all_reduce", "world", 1))
        return ops

    def _all_forward(self, rank: int) -> list[Op]:
        """All microbatches forward, then all of them backward."""
        stage, ops = self.shape.stage(rank), []
        for towards in (1, -1):
            for _ in range(self.microbatches):
                if 0 <= stage - towards < self.shape.pp:
                    ops.append(self._message("recv", rank, -towards))
                ops += self._compute()
                if 0 <= stage + towards < self.shape.pp:
                    ops.append(self._message("send", rank, towards))
        return ops

    def _one_forward_one_backward(self, rank: int) -> list[Op]:
        """One microbatch forward, one backward, as Megatron's `forward_backward_pipelining` does. In between,
        the neighbours exchange an activation and a gradient in one batch."""
        stage, last, ops = self.shape.stage(rank), self.shape.pp - 1, []
        first = stage == 0
        ahead = min(last - stage, self.microbatches)
        steady = self.microbatches - ahead
        for _ in range(ahead):
            ops += [] if first else [self._message("recv", rank, -1)]
            ops += [*self._compute(), self._message("send", rank, 1)]
        if steady and not first:
            ops.append(self._message("recv", rank, -1))
        for each in range(steady):
            ops += self._compute()
            ops += [] if stage == last else [self._message("send", rank, 1, receives=True)]
            ops += self._compute()
            if not first:
                ops.append(self._message("send", rank, -1, receives=each < steady - 1))
        for _ in range(ahead):
            ops += [self._message("recv", rank, 1), *self._compute()]
            ops += [] if first else [self._message("send", rank, -1)]
        return ops

    def _message(self, name: str, rank: int, stages: int, *, receives: bool = False) -> Op:
        peer = rank + stages * self.shape.dp * self.shape.tp
        return Op(name, self.messages_in, 64, peer, peer if receives else -1)

    def _compute(self) -> list[Op]:
        """What the tensor-parallel neighbours call in one pass."""
        if self.shape.tp == 1:
            return []
        uneven = (self.uneven.name,) if self.uneven else ()
        return [Op(name, "tp", 512) for name in (*uneven, "_all_gather_base", "_reduce_scatter_base")]

    def places(self, rank: int, kind: str) -> list[int]:
        """Indices at which a fault of this kind can strike, after the first step."""
        program = self.programs[rank]
        step = len(program) // self.steps
        if kind == "loading":
            return [step]
        calls = range(step, 2 * step)
        if kind in ("asleep", "killed"):
            return list(calls)
        return [each for each in calls if program[each].peer < 0 and self._size(rank, program[each]) > 1]

    def _size(self, rank: int, op: Op) -> int:
        return len(self.shape.members(op.group, rank))

    def run(self, fault: Fault) -> None:
        """Let the job run into the fault, and on until nothing moves."""
        world = self.shape.world
        self.limit = [len(program) for program in self.programs]
        self.frozen: dict[int, int] = {}
        for rank in fault.ranks:
            self._strike(fault, rank)
        self.dead = frozenset(fault.ranks) if fault.kind == "killed" else frozenset()
        self.done, self.shown = [0] * world, [0] * world
        self.met: list[set[tuple[str, int]]] = [set() for _ in range(world)]
        self.times: list[list[int]] = [[0] for _ in range(world)]
        while self._advance():
            self.clock += 1
        for rank in range(world):
            ahead = self.random.randint(0, self.lead)
            # A blocking call is enqueued, too; nothing after it is.
            self.enqueued.append(min(self.done[rank] + 1 + ahead, self.limit[rank]))
        self.shown = [min(done, self.frozen.get(rank, done)) for rank, done in enumerate(self.done)]

    def _strike(self, fault: Fault, rank: int) -> None:
        program, index = self.programs[rank], fault.index
        if fault.kind in ("asleep", "killed", "loading"):
            self.limit[rank] = index
        elif fault.kind == "device":
            self.frozen[rank] = index
        elif fault.kind == "skip":
            del program[index]
            self.limit[rank] -= 1
        elif fault.kind == "other":
            program[index] = program[index]._replace(name="broadcast")
        elif fault.kind == "size":
            program[index] = program[index]._replace(size=program[index].size + 7)
        elif fault.kind == "dtype":
            self.wrong_type[rank] = index

    def _advance(self) -> bool:
        """Complete whatever can complete; False where nothing could."""
        moved = False
        for rank in range(self.shape.world):
            op = self._at(rank)
            if op is None:
                continue
            if op.peer >= 0:
                moved = self._exchange(rank, op) or moved
                continue
            members = self.shape.members(op.group, rank)
            if (
                all(self._at(each) == op for each in members)
                and len({self.wrong_type.get(each) == self.done[each] for each in members}) == 1
                and len({self._number(each) for each in members}) == 1
            ):
                self._complete(members)
                moved = True
        return moved

    def _exchange(self, rank: int, op: Op) -> bool:
        """Let the messages of a call meet their counterparts; True where one has."""
        moved = False
        for name, peer in op.messages:
            other = self._at(peer)
            counterpart = ("recv" if name == "send" else "send", rank)
            if (name, peer) in self.met[rank] or other is None or counterpart not in other.messages:
                continue
            self.met[rank].add((name, peer))
            self.met[peer].add(counterpart)
            moved = True
            for each, call in ((rank, op), (peer, other)):
                if len(self.met[each]) == len(call.messages):
                    self._complete((each,))
        return moved

    def _complete(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self.met[rank].clear()
            self.done[rank] += 1
            self.times[rank].append(self.clock)

    def _posted(self, rank: int) -> list[int]:
        """Places of the calls that the rank has enqueued."""
        program, end = self.programs[rank], self.enqueued[rank]
        if self.receives_early and end < len(program) and self.limit[rank] == end:
            early = [place for place in range(end, len(program)) if program[place].name == "recv"]
            sender = self._at(program[early[0]].peer) if early else None
            if early and (sender is None or ("send", rank) not in sender.messages):
                return [*range(end), early[0]]
        return list(range(end))

    def _number(self, rank: int) -> int:
        program, here = self.programs[rank], self.done[rank]
        return sum(op.group == program[here].group and op.peer < 0 for op in program[:here])

    def _at(self, rank: int) -> Op | None:
        here = self.done[rank]
        # A device that fails has given its part of the operation at which it does, and nothing after it.
        if here >= self.limit[rank] or here > self.frozen.get(rank, here):
            return None
        return self.programs[rank][here]

    def dumps(self) -> dict[int, dict[str, Any]]:
        """The dump of each rank that lives, in the recorder's format 2.9."""
        return {rank: self._dump(rank) for rank in range(self.shape.world) if rank not in self.dead}

    def _dump(self, rank: int) -> dict[str, Any]:
        used = list(dict.fromkeys(("world", *(op.group for op in self.programs[rank]))))
        names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        status = [dict.fromkeys(names, -1) for _ in used]
        recorder = FlightRecorder()
        for index in self._posted(rank):
            op, completed = self.programs[rank][index], index < self.shown[rank]
            local = used.index(op.group)
            facts = self._facts(rank, index, op, local)
            if self.uneven and op.name == self.uneven.name:
                members = len(self.shape.members(op.group, rank))
                number = recorder.uneven(local, facts, self.uneven, members, completed)
            elif op.peer >= 0 and self.batched:
                number = recorder.batch(local, [facts | each for each in self._named(rank, op)], completed)
            else:
                is_message = {"is_p2p": True} | self._named(rank, op)[0] if op.peer >= 0 else {}
                number = recorder.single(local, facts | is_message, completed)
            status[local]["last_enqueued_collective"] = number
            if completed:
                status[local]["last_completed_collective"] = number
        config = {}
        for group in used:
            name, description = self.group_name(group, rank)
            members = str(list(self.shape.members(group, rank)))
            config[name] = {"name": name, "desc": description, "ranks": members}
        return {
            "version": "2.9",
            "pg_config": config,
            "pg_status": {str(local): each for local, each in enumerate(status)},
            "entries": [
                each for each in recorder.entries if not (self.only_active and each["state"] == "completed")
            ],
        }

    def _time(self, rank: int, index: int) -> int:
        """When the call was enqueued: as the device came to it, or as it stopped coming."""
        return self.times[rank][min(index, len(self.times[rank]) - 1)]

    def group_name(self, group: str, rank: int) -> tuple[str, str]:
        """Name and description, as Megatron or a device mesh gives them."""
        members = self.shape.members(group, rank)
        if group == "world":
            return "0", "default_pg"
        if self.names == "megatron":
            kinds = {"tp": "TENSOR_MODEL", "dp": "DATA", "pp": "PIPELINE_MODEL"}
            return f"{('tp', 'dp', 'pp').index(group) + 1}{members[0]:04d}", f"{kinds[group]}_PARALLEL_GROUP"
        return f"{crc32(repr((group, members)).encode()):x}", f"mesh_{group}"

    def _facts(self, rank: int, index: int, op: Op, local: int) -> dict[str, Any]:
        kind = "Float" if self.wrong_type.get(rank) == index else "BFloat16"
        return {
            "pg_id": local,
            "process_group": self.group_name(op.group, rank),
            "profiling_name": f"nccl:{op.name}",
            "time_created_ns": START_NS + 50_000_000 * self._time(rank, index) + index,
            "input_sizes": [[op.size, 8]],
            "input_dtypes": [kind],
            "output_sizes": [[op.size, 8]],
            "output_dtypes": [kind],
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "timeout_ms": 180_000,
        }

    def _named(self, rank: int, op: Op) -> list[dict[str, Any]]:
        """The names of the sends and receives of a call."""
        members = self.shape.members(op.group, rank)
        arrows = {"send": "->", "recv": "<-"}
        return [
            {"profiling_name": f"nccl:{name} {members.index(rank)}{arrows[name]}{members.index(peer)}"}
            for name, peer in op.messages
        ]


_NOTHING: dict[str, Any] = {
    each: [] for each in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
}


class FlightRecorder:
    """Numbers entries as ProcessGroupNCCL does; each method returns what `workEnqueue` takes as status."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[int, Counter[str]] = defaultdict(Counter)

    def single(self, local: int, facts: dict[str, Any], completed: bool) -> int:
        number = "p2p_seq_id" if "is_p2p" in facts else "collective_seq_id"
        self._numbers[local].update((number, "op_id"))
        self._record(local, facts, completed)
        return self._numbers[local][number]

    def batch(self, local: int, parts: list[dict[str, Any]], completed: bool) -> int:
        numbers = self._numbers[local]
        numbers["p2p_seq_id"] += 1
        for part in parts:
            numbers["op_id"] += 1
            self._record(local, part | {"is_p2p": True}, completed=False)
        self._record(local, parts[-1] | _NOTHING | {"profiling_name": "nccl:coalesced"}, completed)
        return numbers["p2p_seq_id"]

    def uneven(
        self, local: int, facts: dict[str, Any], operation: Uneven, members: int, completed: bool
    ) -> int:
        numbers = self._numbers[local]
        numbers["collective_seq_id"] += 1
        for member in range(members):
            numbers["op_id"] += 1
            sizes = {"input_sizes": [[member + 1, 8]], "output_sizes": [[member + 1, 8]]}
            self._record(local, facts | sizes | {"profiling_name": f"nccl:{operation}"}, completed=False)
        end = {"profiling_name": f"nccl:{operation.name}_coalesced"}
        self._record(local, facts | _NOTHING | end, completed)
        return numbers["collective_seq_id"]

    def _record(self, local: int, facts: dict[str, Any], completed: bool) -> None:
        numbers = {each: self._numbers[local][each] for each in ("collective_seq_id", "p2p_seq_id", "op_id")}
        state = {"state": "completed" if completed else "scheduled", "retired": completed}
        unknown = {} if completed else {"time_discovered_completed_ns": None}
        entry = {"record_id": len(self.entries), **numbers, **state, "is_p2p": False, **facts, **unknown}
        self.entries.append(entry)
