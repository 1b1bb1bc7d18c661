"""How long each operation of a simulated job takes by itself, and when it starts and ends.

An operation starts when its rank is free and, where it waits for others, goes on when the last of them has
come:

    end = max(end of the operation before, arrivals of all whom it waits for) + seconds

One NumPy operation handles all replicas and shards of a stage. The straggler engine replays steps as well,
but along dependencies that it infers from a table. This timeline follows from the program of the job, so that
the truth does not share the engine's assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.simulation.program import (
    STALL,
    JobShape,
    Message,
    Planned,
    Program,
    Transfer,
    Turn,
    in_order,
    partners,
)
from bench.simulation.workload import Draws, Fault, Floats, Workload
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind

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


_AXES: Mapping[Transfer, tuple[int, ...]] = MappingProxyType(
    {
        Transfer.SHARDS: (1,),
        Transfer.REPLICAS: (0,),
        Transfer.STAGE: (0, 1),
        Transfer.PIPELINE: (1,),
        Transfer.ENDS: (),
        Transfer.WORLD: (0, 1),
    }
)
"""Axes of (replica, shard) along which the members of a collective lie, on each of its stages."""


class Timeline(NamedTuple):
    """Seconds since the job began, by stage, each of shape (step, operation, replica, shard)."""

    starts: tuple[Floats, ...]
    ends: tuple[Floats, ...]

    def run_seconds(self) -> float:
        """From the first start to the last end."""
        return max(float(each[-1, -1].max()) for each in self.ends)

    def step_ends(self) -> Floats:
        """When the last rank finished each step."""
        ends: Floats = np.max([each[:, -1].max(axis=(1, 2)) for each in self.ends], axis=0)
        return ends


def run_program(shape: JobShape, program: Program, durations: tuple[Floats, ...]) -> Timeline:
    """Run all steps with these seconds by stage (of communication: of the transfer)."""
    starts = tuple(np.empty_like(each) for each in durations)
    ends = tuple(np.empty_like(each) for each in durations)
    free = [np.zeros((shape.data_parallel, shape.tensor_parallel)) for _ in program]
    turns, waited_for = in_order(program), partners(program)
    for number in range(len(durations[0])):
        begun, seconds = ([each[number] for each in part] for part in (starts, durations))
        step = _Step(program, waited_for, begun, seconds)
        for stage, begin in enumerate(free):
            step.starts[stage][0] = begin
        for turn in turns:
            end = step.end(turn)
            ends[turn.stage][number, turn.operation] = end
            if turn.operation + 1 < len(program[turn.stage]):
                step.starts[turn.stage][turn.operation + 1] = end
        free = [each[number, -1] for each in ends]
    return Timeline(starts, ends)


class _Step:
    """One step that runs: who has begun what, and which messages were sent."""

    def __init__(
        self,
        program: Program,
        waited_for: Mapping[Turn, tuple[Turn, ...]],
        starts: Sequence[Floats],
        seconds: Sequence[Floats],
    ) -> None:
        """By stage: `starts` and `seconds` of shape (operation, replica, shard)."""
        self._program, self._waited_for = program, waited_for
        self.starts, self._seconds = starts, seconds
        self._sent: dict[Message, Floats] = {}

    def end(self, turn: Turn) -> Floats:
        """(replica, shard): when an operation ends that all whom it waits for have begun."""
        planned = self._program[turn.stage][turn.operation]
        begin = self.starts[turn.stage][turn.operation]
        if planned.transfer in _AXES:
            return self._end_of_collective(turn, planned)
        if planned.transfer is Transfer.EXCHANGE:
            return self._end_of_exchange(turn)
        end: Floats = begin + self._seconds[turn.stage][turn.operation]
        if planned.transfer is Transfer.RECEIVE and planned.message is not None:
            end = np.maximum(begin, self._sent[planned.message])
        if planned.transfer is Transfer.SEND and planned.message is not None:
            self._sent[planned.message] = end
        return end

    def _end_of_collective(self, turn: Turn, planned: Planned) -> Floats:
        """The last member and the slowest link set it."""
        members = self._waited_for.get(turn, (turn,))
        axes = _AXES[planned.transfer]

        def most(values: Sequence[Floats]) -> Floats:
            of_each = [values[stage][index].max(axis=axes, keepdims=True) for stage, index in members]
            largest: Floats = np.maximum.reduce(of_each)
            return largest

        begin = self.starts[turn.stage][turn.operation]
        end = np.broadcast_to(most(self.starts) + most(self._seconds), begin.shape)
        if planned.only_replica is None:
            return end
        takes_part = np.arange(len(begin))[:, None] == planned.only_replica
        return np.where(takes_part, end, begin)

    def _end_of_exchange(self, turn: Turn) -> Floats:
        """When both messages have come. Each takes its sender's transfer, after both of its ends began."""
        begin = self.starts[turn.stage][turn.operation]
        end: Floats = begin
        own = self._program[turn.stage][turn.operation]
        for stage, index in self._waited_for[turn]:
            other = self._program[stage][index]
            both = np.maximum(begin, self.starts[stage][index])
            if own.message is not None and own.message == other.received:
                end = np.maximum(end, both + self._seconds[turn.stage][turn.operation])
            if own.received is not None and own.received == other.message:
                end = np.maximum(end, both + self._seconds[stage][index])
        return end
