"""A job that hangs: what each rank leaves behind, as flight recorder and as black box.

The dumps are those of torch's recorder, with the keys of format 2.10. Collective timing is off, as it is by
default: what has not completed is `scheduled`, started or not. Each message is a batch of its own.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bench.simulation.black_boxes import SimulatedBox, identity_of, losses
from bench.simulation.hang import (
    Call,
    Calls,
    Execution,
    Group,
    Groups,
    HangFault,
    HangKind,
    Plane,
    Track,
    calls_of,
    groups_of,
    work_before,
)
from bench.simulation.program import JobShape, Program, plan
from rankwatch.conventions.vocabulary import DATA_WAIT, PHASES
from support.diagnosis.hang_jobs import FlightRecorder


@dataclass(frozen=True, kw_only=True)
class HangJob:
    """Everything that determines the dumps of a job."""

    shape: JobShape = field(default_factory=JobShape)
    fault: HangFault = field(default_factory=HangFault)
    steps: int = 6
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SimulatedHang:
    """What the job leaves behind."""

    snapshots: Mapping[int, dict[str, Any]]
    """By rank."""

    calls: Sequence[Calls]
    """What each rank would have called, by rank."""
    tracks: Sequence[Track]
    """How far it got, by rank."""
    groups: Groups


def simulate_hang(job: HangJob) -> SimulatedHang:
    """Run the job until nothing moves."""
    groups = groups_of(job.shape)
    program = plan(job.shape)
    calls = [calls_of(job.shape, program, job.steps, rank, job.fault) for rank in range(job.shape.ranks)]
    execution = Execution(job.shape, groups, calls, np.random.default_rng(job.seed))
    execution.run()
    lost = frozenset(job.fault.ranks if job.fault.kind is HangKind.KILLED else ())
    return SimulatedHang(
        snapshots={
            rank: _snapshot(job.shape, groups, rank, calls[rank], track)
            for rank, track in enumerate(execution.tracks)
            if rank not in lost
        },
        calls=calls,
        tracks=execution.tracks,
        groups=groups,
    )


_BEGAN_NS = 1_760_000_000_000_000_000
"""An arbitrary wall clock: the job of a seed has the same dumps at any time."""
_RETIRED_AFTER_NS = 100_000_000
"""Pace of the watchdog."""
_RING_ENTRIES = 2_000
"""TORCH_FR_BUFFER_SIZE, by default."""


def _snapshot(shape: JobShape, groups: Groups, rank: int, program: Calls, track: Track) -> dict[str, Any]:
    """What torch's recorder of this rank holds when the job stands still."""
    own = sorted({groups[rank, plane] for plane in Plane}, key=lambda group: int(group.name))
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    status = [dict.fromkeys(names, -1) for _ in own]
    recorder = FlightRecorder()
    for index, started in enumerate(track.started_ns):
        call, completed = program.calls[index], track.completed_ns.get(index)
        group = groups[rank, call.plane]
        local = own.index(group)
        facts = _facts(shape, rank, call, group, started, completed) | {"pg_id": local}
        if call.tag is None:
            number = recorder.single(local, facts, completed is not None)
        else:
            number = recorder.batch(local, [facts], completed is not None)
        status[local]["last_enqueued_collective"] = number
        if completed is not None:
            status[local]["last_completed_collective"] = number
    return {
        "version": "2.10",
        "pg_config": {
            group.name: {"name": group.name, "desc": group.description, "ranks": str(list(group.ranks))}
            for group in own
        },
        "comm_lib_version": "2.27.3",
        "pg_status": {str(local): each for local, each in enumerate(status)},
        "entries": recorder.entries[-_RING_ENTRIES:],
    }


def _facts(
    shape: JobShape, rank: int, call: Call, group: Group, started: int, completed: int | None
) -> dict[str, Any]:
    size = list(call.size)
    given = [math.prod(size) * len(group.ranks)] if call.operation == "_all_gather_base" else size
    stage = shape.place(rank)[0]
    arrow = {"send": f" {stage}->{call.to_stage}", "recv": f" {stage}<-{call.from_stage}"}
    discovered = None if completed is None else _BEGAN_NS + completed + _RETIRED_AFTER_NS
    return {
        "process_group": (group.name, group.description),
        "profiling_name": f"nccl:{call.operation}{arrow.get(call.operation, '')}",
        "time_created_ns": _BEGAN_NS + started,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": discovered,
        "input_sizes": [size],
        "input_dtypes": [call.dtype],
        "output_sizes": [given],
        "output_dtypes": [call.dtype],
        "timeout_ms": 600_000,
        "thread_name": "python",
        "thread_id": "140000000000000",
    }


def write_snapshots(snapshots: Mapping[int, dict[str, Any]], directory: Path, form: str) -> None:
    """`_dump_RANK` as a pickle of plain containers, or `_dump_RANK.json`; raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank, snapshot in snapshots.items():
        if form == "pickle":
            # Protocol 2 is what torch writes.
            (directory / f"_dump_{rank}").write_bytes(pickle.dumps(snapshot, protocol=2))
        else:
            (directory / f"_dump_{rank}.json").write_text(json.dumps(_as_json(snapshot)))


def _as_json(snapshot: dict[str, Any]) -> dict[str, Any]:
    """In JSON, torch writes 0 for a time that is not known."""
    times = ("time_discovered_started_ns", "time_discovered_completed_ns")
    entries = [entry | {name: entry[name] or 0 for name in times} for entry in snapshot["entries"]]
    return snapshot | {"entries": entries}


_OPERATION_OF: Mapping[str, str] = MappingProxyType({"_all_gather_base": "all_gather"})
"""Names in flight recorders that differ from ours."""
_ITEM_BYTES: Mapping[str, int] = MappingProxyType({"BFloat16": 2, "Float": 4})
_LAST_WORK_SECONDS = 0.001
"""Of each operation after the last call of a rank, or before one that it never makes."""

_Work = list[tuple[int, str]]


def write_hang_boxes(hang: SimulatedHang, job: HangJob, directory: Path, *, run: str) -> None:
    """One box for each rank, those of killed ranks too: DIRECTORY/RUN/RANK.blackbox. No process holds the
    lock of a box: a rank that sleeps and one that was killed look alike. Raises BlackBoxError."""
    program = plan(job.shape)
    most = max(len(track.started_ns) for track in hang.tracks)
    records = 3 * most + job.steps * (len(max(program, key=len)) + 2) + 2
    curve = losses(job.steps, job.seed)
    for rank, track in enumerate(hang.tracks):
        identity = identity_of(job.shape, rank, run)
        box = SimulatedBox(directory, identity, records=records, target_steps=job.steps)
        try:
            writer = _Rank(box, rank, hang.groups, curve, loads=job.fault.kind is HangKind.STUCK_DATA)
            writer.write(hang.calls[rank], track, _work(job, program, rank))
        finally:
            box.close()


def _work(job: HangJob, program: Program, rank: int) -> list[_Work]:
    """The rank's own operations before each of its calls, with the fault applied."""
    work = work_before(program[job.shape.place(rank)[0]], job.steps)
    if job.fault.kind is HangKind.SKIP and rank in job.fault.ranks:
        healthy = calls_of(job.shape, program, job.steps, rank, HangFault(kind=HangKind.NONE, ranks=())).calls
        faulty = calls_of(job.shape, program, job.steps, rank, job.fault).calls
        pairs = zip(healthy, (*faulty, None), strict=True)
        left_out = next(at for at, (one, other) in enumerate(pairs) if one != other)
        work[left_out : left_out + 2] = [work[left_out] + work[left_out + 1]]
    return work


class _Rank:
    """Writes the box of one rank, call after call.

    loads: the rank stops in its loader.
    """

    def __init__(
        self, box: SimulatedBox, rank: int, groups: Groups, curve: Sequence[float], *, loads: bool
    ) -> None:
        self._box, self._rank, self._groups, self._curve = box, rank, groups, curve
        self._loads = loads
        self._step = 0
        self._began = 0.0
        self._clock = 0.0
        box.step_begins(0, 0.0)

    def write(self, program: Calls, track: Track, work: Sequence[_Work]) -> None:
        """Write everything up to where the rank stopped."""
        for index, started in enumerate(track.started_ns):
            self._work_until(work[index], started / 1e9)
            ended = track.completed_ns.get(index)
            self._call(program.calls[index], ended, blocked=index == len(track.started_ns) - 1)
        reached = len(track.started_ns)
        if track.blocked and program.calls[reached - 1].to_stage is None:
            return
        following = work[reached] if reached < len(work) else []
        if reached == len(program.calls):
            self._work_until(following, self._clock + _LAST_WORK_SECONDS * len(following))
            self._end_step(self._clock)
            self._box.finish(self._step, self._clock)
        elif reached == program.stops_before:
            self._stop_in(following)

    def _call(self, call: Call, ended_ns: int | None, *, blocked: bool) -> None:
        start = self._clock
        end: float | None = None if ended_ns is None else ended_ns / 1e9
        if call.to_stage is not None and (end is None or not blocked):
            end = start  # a send does not block
        group = self._groups[self._rank, call.plane]
        size = math.prod(call.size) * _ITEM_BYTES[call.dtype]
        operation = _OPERATION_OF.get(call.operation, call.operation)
        self._box.communication(operation, (group.description, group.ranks), size, start, end)
        self._clock = start if end is None else end

    def _work_until(self, work: _Work, end: float) -> None:
        """The rank's own operations share the time up to `end`."""
        each = (end - self._clock) / max(1, len(work))
        for step, operation in work:
            self._into(step)
            self._phase(operation, self._clock + each)
            self._clock += each
        self._clock = end

    def _stop_in(self, work: _Work) -> None:
        """Stop in the last of the operations, or in the loader of its step where there is one."""
        if not work:
            return
        step, _ = work[-1]
        loading = (step, "data_loading")
        stop = work.index(loading) if self._loads and loading in work else len(work) - 1
        self._work_until(work[:stop], self._clock + _LAST_WORK_SECONDS * stop)
        self._into(step)
        self._phase(work[stop][1], None)

    def _phase(self, operation: str, end: float | None) -> None:
        phase = DATA_WAIT if operation == "data_loading" else operation
        if phase in PHASES:
            self._box.phase(phase, self._clock, end)

    def _into(self, step: int) -> None:
        """Close the steps before this one."""
        if step != self._step:
            self._end_step(self._clock)
            self._step, self._began = step, self._clock
            self._box.step_begins(step, self._clock)

    def _end_step(self, end: float) -> None:
        self._box.step_ends(self._step, self._began, end, self._curve[self._step])
