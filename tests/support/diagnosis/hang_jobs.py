"""Small distributed jobs, run on paper until they stand still, and the flight recorders they leave.

Each rank has a program and two pointers into it: what its host has enqueued and what its device has finished.
A collective completes when all members are at it with the same call, a send when its receive is there.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

from rankwatch_agent.training.flight_recorder.parse import parse_document
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.snapshot import HangSnapshot

START_NS = 1_758_610_505_000_000_000


def parsed(document: object, rank: int) -> HangSnapshot:
    """The snapshot in a loaded dump."""
    return snapshot_of(parse_document(document), rank)


class Op(NamedTuple):
    """One call: `group` is the kind of group, `peer` a rank of the job for sends and receives."""

    name: str
    group: str
    size: int = 1024
    peer: int = -1


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
    """

    shape: Shape
    seed: int
    names: str = "megatron"
    lead: int = 8
    steps: int = 3
    microbatches: int = 2
    only_active: bool = False
    receives_early: bool = False
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
        per_stage = shape.dp * shape.tp
        for _ in range(self.steps):
            for towards in (1, -1):
                for _ in range(self.microbatches):
                    before, after = stage - towards, stage + towards
                    if 0 <= before < shape.pp:
                        ops.append(Op("recv", "pp", 64, rank - towards * per_stage))
                    if shape.tp > 1:
                        ops += [Op("_all_gather_base", "tp", 512), Op("_reduce_scatter_base", "tp", 512)]
                    if 0 <= after < shape.pp:
                        ops.append(Op("send", "pp", 64, rank + towards * per_stage))
            if shape.dp > 1:
                ops += [Op("all_reduce", "dp", size) for size in (4096, 2048 + stage)]
            ops.append(Op("all_reduce", "world", 1))
        return ops

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
                other = self._at(op.peer)
                if other is not None and other.peer == rank and {op.name, other.name} == {"send", "recv"}:
                    self._complete((rank, op.peer))
                    moved = True
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

    def _complete(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self.done[rank] += 1
            self.times[rank].append(self.clock)

    def _posted(self, rank: int) -> list[int]:
        """Places of the calls that the rank has enqueued."""
        program, end = self.programs[rank], self.enqueued[rank]
        if self.receives_early and end < len(program) and self.limit[rank] == end:
            early = [place for place in range(end, len(program)) if program[place].name == "recv"]
            sender = self._at(program[early[0]].peer) if early else None
            if early and (sender is None or (sender.name, sender.peer) != ("send", rank)):
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
        numbers: dict[tuple[str, bool], int] = defaultdict(int)
        entries, status = [], {str(local): {"last_enqueued_collective": -1} for local in range(len(used))}
        for local in range(len(used)):
            status[str(local)] |= {"last_started_collective": -1, "last_completed_collective": -1}
        for index in self._posted(rank):
            op = self.programs[rank][index]
            to_peer, completed = op.peer >= 0, index < self.shown[rank]
            numbers[(op.group, to_peer)] += 1
            local = used.index(op.group)
            sequence = numbers[(op.group, to_peer)]
            status[str(local)]["last_enqueued_collective"] = sequence
            if completed:
                status[str(local)]["last_completed_collective"] = sequence
            if not (self.only_active and completed):
                entries.append(self._entry(rank, index, op, local, sequence, completed))
        config = {}
        for group in used:
            name, description = self.group_name(group, rank)
            members = str(list(self.shape.members(group, rank)))
            config[name] = {"name": name, "desc": description, "ranks": members}
        return {"version": "2.9", "pg_config": config, "pg_status": status, "entries": entries}

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

    def _entry(
        self, rank: int, index: int, op: Op, local: int, sequence: int, completed: bool
    ) -> dict[str, Any]:
        members = self.shape.members(op.group, rank)
        name = op.name
        if op.peer >= 0:
            arrow = "->" if op.name == "send" else "<-"
            name = f"{op.name} {members.index(rank)}{arrow}{members.index(op.peer)}"
        kind = "Float" if self.wrong_type.get(rank) == index else "BFloat16"
        return {
            "record_id": index,
            "pg_id": local,
            "process_group": self.group_name(op.group, rank),
            "collective_seq_id": 0 if op.peer >= 0 else sequence,
            "p2p_seq_id": sequence if op.peer >= 0 else 0,
            "op_id": sequence,
            "profiling_name": f"nccl:{name}",
            "time_created_ns": START_NS + 50_000_000 * self._time(rank, index) + index,
            "input_sizes": [[op.size, 8]],
            "input_dtypes": [kind],
            "output_sizes": [[op.size, 8]],
            "output_dtypes": [kind],
            "state": "completed" if completed else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": completed,
            "timeout_ms": 180_000,
            "is_p2p": op.peer >= 0,
        }
