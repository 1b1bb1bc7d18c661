"""When each operation of a simulated job starts and ends.

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
from numpy.typing import NDArray

from rankwatch_diagnosis.simulation.program import (
    Message,
    Planned,
    Program,
    Transfer,
    Turn,
    in_order,
    partners,
)
from rankwatch_diagnosis.simulation.shape import JobShape

Floats = NDArray[np.float64]

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
