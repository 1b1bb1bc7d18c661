"""How long each operation takes by itself: its role, its noise, and what the fault adds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.program import Planned, Program, Transfer
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.workload import Draws, Floats, Workload

_PASSES = ("forward", "backward")
_KINDS = {
    SlowPhase.COMPUTE: Kind.COMPUTE,
    SlowPhase.DATA_LOADING: Kind.DATA_LOADING,
    SlowPhase.OTHER: Kind.OTHER,
}
"""Operations that take longer on a slow rank."""


class Setting(NamedTuple):
    """What the run with the fault and the run without it share."""

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
    if planned.transfer is Transfer.SHARDS:
        return workload.tensor_seconds * (backward if planned.of == "backward" else 1.0)
    if planned.transfer is Transfer.REPLICAS:
        return workload.ring(shape.data_parallel)
    return workload.norm_seconds if planned.transfer is Transfer.WORLD else seconds[planned.operation]


def durations(setting: Setting, fault: Fault) -> tuple[Floats, ...]:
    """By stage, (step, operation, replica, shard): seconds; of communication, of the transfer."""
    return tuple(_stage(setting, fault, stage) for stage in range(setting.shape.pipeline_parallel))


def difficulty(setting: Setting, fault: Fault) -> Floats:
    """(step, replica, microbatch): factor on the compute of each microbatch."""
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
    """(operation, replica, shard): the fault's factor while it is active."""
    planned, shape = setting.program[stage], setting.shape
    factors = np.ones((len(planned), shape.data_parallel, shape.tensor_parallel))
    if fault.cause is Cause.SLOW_STAGE and stage == fault.stage:
        factors[[each.operation in _PASSES for each in planned]] = fault.factor
    if fault.cause is Cause.SLOW_RANK:
        _slow_down(factors, [each.kind is _KINDS[fault.phase] for each in planned], fault, shape, stage)
    if fault.cause is Cause.DATA_LOADING:
        factors[[each.kind is Kind.DATA_LOADING for each in planned]] = fault.factor
    if fault.cause is Cause.NETWORK:
        carries = [each.kind is Kind.COMMUNICATION for each in planned]
        if fault.ranks:
            _slow_down(factors, carries, fault, shape, stage)
        else:
            factors[carries] = fault.factor
    return factors


def _slow_down(factors: Floats, operations: list[bool], fault: Fault, shape: JobShape, stage: int) -> None:
    for rank in fault.ranks:
        at, replica, shard = shape.place(rank)
        if at == stage:
            factors[operations, replica, shard] = fault.factor


def _pause(seconds: Floats, setting: Setting, fault: Fault, stage: int) -> None:
    """Add pauses as garbage collection, page faults and interrupts cause them, each to one pass of a rank."""
    planned = setting.program[stage]
    passes = np.flatnonzero([each.operation in _PASSES for each in planned])
    base = sum(base_seconds(planned[index], stage, setting) for index in passes)
    mean = (fault.factor - 1.0) * base
    pauses = mean * setting.pauses[:, stage] * fault.active(len(seconds))[:, None, None]
    step, replica, shard = np.nonzero(pauses)
    # Any fixed spread over the step's passes would do; this one needs no random numbers of its own.
    paused = passes[(7 * step + 5 * replica + 3 * shard) % len(passes)]
    seconds[step, paused, replica, shard] += pauses[step, replica, shard]
