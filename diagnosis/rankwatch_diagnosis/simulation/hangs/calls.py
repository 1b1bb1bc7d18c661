"""What each rank calls, step after step, with the fault worked in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rankwatch_diagnosis.simulation.hangs.fault import HangFault, HangKind, Plane
from rankwatch_diagnosis.simulation.program import Meeting, Planned, Program
from rankwatch_diagnosis.simulation.shape import JobShape

_ACTIVATIONS = (2048, 1, 1024)
_BUCKETS = ((6_553_600,), (5_242_880,), (1_310_720,))
"""Elements of the gradient buckets: unequal, so that a bucket too few is seen."""
_NORM = (1,)
_PLANES = {Meeting.SHARDS: Plane.TENSOR, Meeting.REPLICAS: Plane.DATA, Meeting.WORLD: Plane.WORLD}


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
    """All of the rank's calls; the fault must have been checked against the shape."""
    stage = shape.place(rank)[0]
    planned = program[stage]
    calls = [call for step in range(steps) for each in planned for call in _calls(each, step)]
    if fault.kind is HangKind.NONE or rank not in fault.ranks:
        return Calls(tuple(calls))
    return _struck(calls, fault)


def work_before(program: Sequence[Planned], steps: int) -> list[list[tuple[int, str]]]:
    """For each call of a healthy rank the (step, operation) of its own that comes between the call before
    and this one; the last list is what follows the last call."""
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
    if planned.meeting is Meeting.SEND and message is not None:
        tag = (message.operation, message.microbatch)
        yield Call(step, Plane.PIPELINE, "send", _ACTIVATIONS, to_stage=message.to_stage, tag=tag)
    elif planned.meeting is Meeting.RECEIVE and message is not None:
        source = message.to_stage - (1 if message.operation == "forward" else -1)
        tag = (message.operation, message.microbatch)
        yield Call(step, Plane.PIPELINE, "recv", _ACTIVATIONS, from_stage=source, tag=tag)
    elif planned.meeting is Meeting.REPLICAS:
        yield from (Call(step, Plane.DATA, "all_reduce", size, "Float") for size in _BUCKETS)
    elif planned.meeting in _PLANES:
        size = _ACTIVATIONS if planned.meeting is Meeting.SHARDS else _NORM
        dtype = "BFloat16" if planned.meeting is Meeting.SHARDS else "Float"
        yield Call(step, _PLANES[planned.meeting], "all_reduce", size, dtype)


def _struck(calls: list[Call], fault: HangFault) -> Calls:
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
