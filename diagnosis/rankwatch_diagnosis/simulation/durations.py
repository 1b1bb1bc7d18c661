"""How long each operation takes by itself: role, noise, and what the fault adds to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.noise import Draws
from rankwatch_diagnosis.simulation.program import Meeting, Planned, Program
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.workload import Workload

Floats = NDArray[np.float64]

_PASSES = ("forward", "backward")
_KINDS = {
    SlowPhase.COMPUTE: Kind.COMPUTE,
    SlowPhase.DATA_LOADING: Kind.DATA_LOADING,
    SlowPhase.OTHER: Kind.OTHER,
}
"""Operations that take longer on a slow rank."""


class Setting(NamedTuple):
    """What both runs of a job share, the one with the fault and the one without."""

    shape: JobShape
    workload: Workload
    program: Program
    draws: Draws
    squared_lengths: Floats
    """(step, replica, microbatch), mean 1."""
    pauses: Floats
    """(step, stage, replica, shard): pauses as multiples of their mean, most of them 0."""


def base_seconds(planned: Planned, stage: int, setting: Setting) -> float:
    """Mean duration of an operation on a healthy rank; of communication, of the transfer alone."""
    workload, shape = setting.workload, setting.shape
    backward = workload.backward_factor
    role = workload.role(stage, shape.pipeline_parallel)
    seconds = {
        "forward": workload.forward_seconds * role,
        "backward": workload.forward_seconds * backward * role,
        "optimizer": workload.optimizer_seconds,
        "data_loading": workload.data_seconds,
        "host_work": workload.host_seconds,
        "send": workload.send_seconds,
        "recv": 0.0,  # the transfer is the sender's
    }
    if planned.meeting is Meeting.SHARDS:
        return workload.tensor_seconds * (backward if planned.of == "backward" else 1.0)
    if planned.meeting is Meeting.REPLICAS:
        return workload.ring(shape.data_parallel)
    return workload.norm_seconds if planned.meeting is Meeting.WORLD else seconds[planned.operation]


def durations(setting: Setting, fault: Fault) -> tuple[Floats, ...]:
    """Seconds by stage, of shape (step, operation, replica, shard); of communication, of the transfer."""
    return tuple(_stage(setting, fault, stage) for stage in range(setting.shape.pipeline_parallel))


def difficulty(setting: Setting, fault: Fault) -> Floats:
    """Factor on the compute of each microbatch, of shape (step, replica, microbatch)."""
    steps = len(setting.squared_lengths)
    unequal = fault.cause is Cause.UNEQUAL_BATCHES
    share = (fault.factor - 1.0) * fault.active(steps) if unequal else np.zeros(steps)
    factors: Floats = 1.0 + share[:, None, None] * (setting.squared_lengths - 1.0)
    return factors


def _stage(setting: Setting, fault: Fault, stage: int) -> Floats:
    planned = setting.program[stage]
    base = np.array([base_seconds(each, stage, setting) for each in planned])
    seconds: Floats = base[None, :, None, None] * setting.draws.operations[stage]
    computes = np.array([each.kind is Kind.COMPUTE for each in planned])
    seconds[:, computes] *= setting.draws.ranks[:, None, stage]
    if fault.cause is Cause.UNEQUAL_BATCHES:
        passes = np.flatnonzero([each.operation in _PASSES for each in planned])
        microbatches = [planned[index].microbatch for index in passes]
        factors = difficulty(setting, fault)[:, :, microbatches]
        seconds[:, passes] *= factors.transpose(0, 2, 1)[..., None]
    if fault.cause is Cause.JITTER:
        _pause(seconds, setting, fault, stage)
    active = fault.active(len(seconds))
    seconds[active] *= _factors(setting, fault, stage)[None]
    return seconds


def _factors(setting: Setting, fault: Fault, stage: int) -> Floats:
    """What the fault multiplies while it is there, of shape (operation, replica, shard)."""
    planned, shape = setting.program[stage], setting.shape
    factors = np.ones((len(planned), shape.data_parallel, shape.tensor_parallel))
    if fault.cause is Cause.SLOW_STAGE and stage == fault.stage:
        factors[[each.operation in _PASSES for each in planned]] = fault.factor
    if fault.cause is Cause.SLOW_RANK:
        _strike(factors, [each.kind is _KINDS[fault.phase] for each in planned], fault, shape, stage)
    if fault.cause is Cause.DATA_LOADING:
        factors[[each.kind is Kind.DATA_LOADING for each in planned]] = fault.factor
    if fault.cause is Cause.NETWORK:
        carries = [each.kind is Kind.COMMUNICATION for each in planned]
        if fault.ranks:
            _strike(factors, carries, fault, shape, stage)
        else:
            factors[carries] = fault.factor
    return factors


def _strike(factors: Floats, operations: list[bool], fault: Fault, shape: JobShape, stage: int) -> None:
    for rank in fault.ranks:
        at, replica, shard = shape.place(rank)
        if at == stage:
            factors[operations, replica, shard] = fault.factor


def _pause(seconds: Floats, setting: Setting, fault: Fault, stage: int) -> None:
    """The collector of garbage, a page fault, an interrupt: a rank stands still in one of its passes."""
    planned = setting.program[stage]
    passes = np.flatnonzero([each.operation in _PASSES for each in planned])
    base = sum(base_seconds(planned[index], stage, setting) for index in passes)
    mean = (fault.factor - 1.0) * base
    pauses = mean * setting.pauses[:, stage] * fault.active(len(seconds))[:, None, None]
    step, replica, shard = np.nonzero(pauses)
    # Any fixed spread over the step's passes would do; this one needs no random numbers of its own.
    struck = passes[(7 * step + 5 * replica + 3 * shard) % len(passes)]
    seconds[step, struck, replica, shard] += pauses[step, replica, shard]
