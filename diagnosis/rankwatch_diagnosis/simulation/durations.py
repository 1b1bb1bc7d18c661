"""How long each operation takes by itself: its role, its noise, and what the fault adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.megatron import STALL
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
    ring = workload.ring(shape.data_parallel)
    seconds = {
        "forward": workload.forward_seconds * role,
        "backward": workload.forward_seconds * backward * role,
        "optimizer": workload.optimizer_seconds,
        "data_loading": workload.data_seconds,
        "host_work": workload.host_seconds,
        "send": workload.send_seconds,
        "recv": 0.0,  # the transfer is the sender's
        "exchange": workload.send_seconds if planned.message is not None else 0.0,
        "barrier": 0.0,
        "wait_for_batch": workload.data_seconds,
        "stall": workload.host_seconds,
        "gc": workload.host_seconds,
        "prepare_gradients": workload.prepare_seconds,
        "params_all_gather": ring / 2.0,  # an all-reduce is a reduce-scatter and an all-gather
        "grads_reduce_scatter": ring / 2.0,
        "layernorm_grads_all_reduce": workload.layernorm_seconds,
        "embedding_grads_all_reduce": workload.embedding_seconds,
        "norm_all_reduce": workload.norm_seconds,
        "optimizer_clip_main_grad": workload.clip_seconds,
    }
    if planned.operation in seconds:
        return seconds[planned.operation]
    if planned.transfer is Transfer.SHARDS:
        return workload.tensor_seconds * (backward if planned.of == "backward" else 1.0)
    return ring if planned.transfer is Transfer.REPLICAS else workload.norm_seconds


def durations(setting: Setting, *faults: Fault) -> tuple[Floats, ...]:
    """By stage, (step, operation, replica, shard): seconds; of communication, of the transfer."""
    return tuple(_stage(setting, faults, stage) for stage in range(setting.shape.pipeline_parallel))


def difficulty(setting: Setting, *faults: Fault) -> Floats:
    """(step, replica, microbatch): factor on the compute of each microbatch."""
    steps = len(setting.squared_lengths)
    factors = np.ones_like(setting.squared_lengths)
    for fault in faults:
        if fault.cause is Cause.UNEQUAL_BATCHES:
            share = (fault.factor - 1.0) * fault.active(steps)
            factors *= 1.0 + share[:, None, None] * (setting.squared_lengths - 1.0)
    return factors


def _stage(setting: Setting, faults: Sequence[Fault], stage: int) -> Floats:
    planned = setting.program[stage]
    base = np.array([base_seconds(each, stage, setting) for each in planned])
    seconds: Floats = base[None, :, None, None] * setting.draws.operations[stage]
    computes = np.array([each.kind is Kind.COMPUTE for each in planned])
    seconds[:, computes] *= setting.draws.ranks[:, None, stage]
    if any(fault.cause is Cause.UNEQUAL_BATCHES for fault in faults):
        passes = np.flatnonzero([each.operation in _PASSES for each in planned])
        microbatches = [planned[index].microbatch for index in passes]
        factors = difficulty(setting, *faults)[:, :, microbatches]
        seconds[:, passes] *= factors.transpose(0, 2, 1)[..., None]
    for fault in faults:
        if fault.cause is Cause.JITTER:
            _pause(seconds, setting, fault, stage)
        if fault.unrecorded:
            _stall(seconds, setting, fault, stage)
            continue
        seconds[fault.active(len(seconds))] *= _factors(setting, fault, stage)[None]
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


def _stall(seconds: Floats, setting: Setting, fault: Fault, stage: int) -> None:
    """Hold the ranks up once in each step, between two operations."""
    stalled = (fault.factor - 1.0) * _compute_seconds(setting, stage) * fault.active(len(seconds))
    for index, planned in enumerate(setting.program[stage]):
        for rank in fault.ranks:
            at, replica, shard = setting.shape.place(rank)
            if planned.operation == STALL and at == stage:
                seconds[:, index, replica, shard] += stalled


def _compute_seconds(setting: Setting, stage: int) -> float:
    """Mean seconds of all passes of a step."""
    passes = [each for each in setting.program[stage] if each.operation in _PASSES]
    return sum(base_seconds(each, stage, setting) for each in passes)


def _pause(seconds: Floats, setting: Setting, fault: Fault, stage: int) -> None:
    """Add pauses as garbage collection, page faults and interrupts cause them, each to one pass of a rank."""
    planned = setting.program[stage]
    passes = np.flatnonzero([each.operation in _PASSES for each in planned])
    mean = (fault.factor - 1.0) * _compute_seconds(setting, stage)
    pauses = mean * setting.pauses[:, stage] * fault.active(len(seconds))[:, None, None]
    step, replica, shard = np.nonzero(pauses)
    # Any fixed spread over the step's passes would do; this one needs no random numbers of its own.
    paused = passes[(7 * step + 5 * replica + 3 * shard) % len(passes)]
    seconds[step, paused, replica, shard] += pauses[step, replica, shard]
