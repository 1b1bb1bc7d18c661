"""When each operation starts and ends: durations propagated along the dependencies of each step.

A max-plus recurrence: an operation starts when its rank is free and, where it waits for others, goes on when
the last of them has come. One NumPy operation handles all replicas and shards of a stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.simulation.program import Meeting, Message, Planned, Program, in_order
from rankwatch_diagnosis.simulation.shape import JobShape

Floats = NDArray[np.float64]


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


def replay(shape: JobShape, program: Program, durations: tuple[Floats, ...]) -> Timeline:
    """Run the job with these durations (of communication: of the transfer)."""
    starts = tuple(np.empty_like(each) for each in durations)
    ends = tuple(np.empty_like(each) for each in durations)
    free = [np.zeros((shape.data_parallel, shape.tensor_parallel)) for _ in program]
    turns = in_order(program)
    for step in range(len(durations[0])):
        sent: dict[Message, Floats] = {}
        for stage, index in turns:
            planned = program[stage][index]
            starts[stage][step, index] = free[stage]
            if planned.meeting is Meeting.WORLD:
                # Turns of WORLD come together, so that every stage stands at it now.
                end = max(float(each.max()) for each in free)
                ends[stage][step, index] = end + _slowest(program, durations, step)
                if stage == len(program) - 1:
                    free = [each[step, _world(program[at])] for at, each in enumerate(ends)]
                continue
            end_of = _end(planned, free[stage], durations[stage][step, index], sent)
            ends[stage][step, index] = end_of
            free[stage] = end_of
    return Timeline(starts, ends)


def _end(planned: Planned, free: Floats, seconds: Floats, sent: dict[Message, Floats]) -> Floats:
    """The slowest link of a collective holds all its members."""
    meeting = planned.meeting
    if meeting is Meeting.SHARDS:
        last = free.max(axis=1, keepdims=True) + seconds.max(axis=1, keepdims=True)
        return np.broadcast_to(last, free.shape)
    if meeting is Meeting.REPLICAS:
        last = free.max(axis=0, keepdims=True) + seconds.max(axis=0, keepdims=True)
        return np.broadcast_to(last, free.shape)
    if meeting is Meeting.RECEIVE and planned.message is not None:
        return np.maximum(free, sent[planned.message])
    end: Floats = free + seconds
    if meeting is Meeting.SEND and planned.message is not None:
        sent[planned.message] = end
    return end


def _world(operations: tuple[Planned, ...]) -> int:
    return next(index for index, each in enumerate(operations) if each.meeting is Meeting.WORLD)


def _slowest(program: Program, durations: tuple[Floats, ...], step: int) -> float:
    return max(float(durations[at][step, _world(operations)].max()) for at, operations in enumerate(program))
