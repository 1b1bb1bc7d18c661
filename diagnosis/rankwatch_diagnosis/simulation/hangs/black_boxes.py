"""Black boxes of a simulated hang: the same run as its flight-recorder dumps, up to the final state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType

from rankwatch.conventions import DATA_WAIT, PHASES
from rankwatch_diagnosis.simulation.black_boxes import SimulatedBox, check_size, identity_of, losses
from rankwatch_diagnosis.simulation.hangs.execution import Call, Calls, Track, calls_of, work_before
from rankwatch_diagnosis.simulation.hangs.fault import Groups, HangFault, HangKind
from rankwatch_diagnosis.simulation.hangs.job import HangJob, SimulatedHang
from rankwatch_diagnosis.simulation.program import Program, plan

_PHASE_OF: Mapping[str, str] = MappingProxyType({"data_loading": DATA_WAIT})
_OPERATION_OF: Mapping[str, str] = MappingProxyType({"_all_gather_base": "all_gather"})
"""Names in flight recorders that differ from ours."""
_ITEM_BYTES: Mapping[str, int] = MappingProxyType({"BFloat16": 2, "Float": 4})
_LAST_WORK_SECONDS = 0.001
"""Of each operation after the last call of a rank, or before one that it never makes."""

_Work = list[tuple[int, str]]


def write_hang_boxes(hang: SimulatedHang, job: HangJob, directory: Path, *, run: str) -> None:
    """One box for each rank, those of killed ranks too: DIRECTORY/RUN/RANK.blackbox.

    No process holds the lock of a box: a rank that sleeps and one that was killed look alike.
    Raises BlackBoxError, and UserError for too many boxes.
    """
    program = plan(job.shape)
    most = max(len(track.started_ns) for track in hang.tracks)
    records = 3 * most + job.steps * (len(max(program, key=len)) + 2) + 2
    check_size(job.shape.ranks, records)
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
        group = self._groups.of(self._rank, call.plane)
        size = prod(call.size) * _ITEM_BYTES[call.dtype]
        operation = _OPERATION_OF.get(call.operation, call.operation)
        self._box.communication(operation, (group.description, group.ranks), size, start, end)
        self._clock = start if end is None else end

    def _work_until(self, work: _Work, end: float) -> None:
        """The rank's own operations share the time up to `end`."""
        each = (end - self._clock) / max(1, len(work))
        for step, operation in work:
            self._into(step)
            phase = _PHASE_OF.get(operation, operation)
            if phase in PHASES:
                self._box.phase(phase, self._clock, self._clock + each)
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
        phase = _PHASE_OF.get(work[stop][1], work[stop][1])
        if phase in PHASES:
            self._box.phase(phase, self._clock, None)

    def _into(self, step: int) -> None:
        """Close the steps before this one."""
        if step != self._step:
            self._end_step(self._clock)
            self._step, self._began = step, self._clock
            self._box.step_begins(step, self._clock)

    def _end_step(self, end: float) -> None:
        self._box.step_ends(self._step, self._began, end, self._curve[self._step])
