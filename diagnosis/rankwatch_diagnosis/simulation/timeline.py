"""When each operation of a simulated job starts and ends, and the table of operations that follows.

An operation starts when its rank is free and, where it waits for others, goes on when the last of them has
come:

    end = max(end of the operation before, arrivals of all whom it waits for) + seconds

One NumPy operation handles all replicas and shards of a stage. The straggler engine replays steps as well,
but along dependencies that it infers from a table. This timeline follows from the program of the job, so that
the truth does not share the engine's assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.simulation.program import Message, Planned, Program, Transfer, in_order
from rankwatch_diagnosis.simulation.shape import JobShape

Floats = NDArray[np.float64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


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
    turns = in_order(program)
    for step in range(len(durations[0])):
        sent: dict[Message, Floats] = {}
        for stage, index in turns:
            planned = program[stage][index]
            starts[stage][step, index] = free[stage]
            if planned.transfer is Transfer.WORLD:
                # Turns of WORLD follow each other, so every stage stands at it now.
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
    """(replica, shard): when an operation of a stage ends; the slowest link of a collective sets its end."""
    transfer = planned.transfer
    if transfer is Transfer.SHARDS:
        last = free.max(axis=1, keepdims=True) + seconds.max(axis=1, keepdims=True)
        return np.broadcast_to(last, free.shape)
    if transfer is Transfer.REPLICAS:
        last = free.max(axis=0, keepdims=True) + seconds.max(axis=0, keepdims=True)
        return np.broadcast_to(last, free.shape)
    if transfer is Transfer.RECEIVE and planned.message is not None:
        return np.maximum(free, sent[planned.message])
    end: Floats = free + seconds
    if transfer is Transfer.SEND and planned.message is not None:
        sent[planned.message] = end
    return end


def _world(operations: tuple[Planned, ...]) -> int:
    return next(index for index, each in enumerate(operations) if each.transfer is Transfer.WORLD)


def _slowest(program: Program, durations: tuple[Floats, ...], step: int) -> float:
    return max(float(durations[at][step, _world(operations)].max()) for at, operations in enumerate(program))


class OperationRows:
    """Builds the columns of a table, stage after stage, and in each by step, operation and rank."""

    def __init__(self, shape: JobShape, program: Program, steps: int) -> None:
        self._shape, self._program, self._steps = shape, program, steps
        self.operations = tuple(sorted({each.operation for stage in program for each in stage}))
        self._group_numbers: dict[str, int] = {"": 0}

    def table(self, timeline: Timeline, clock_offset_seconds: Floats, work: Floats | None) -> OperationTable:
        """`work` is (step, replica, microbatch), written on forward and backward; None: no work units."""
        number = {name: index for index, name in enumerate(self.operations)}
        starts = self._column(lambda stage: timeline.starts[stage])
        seconds = self._column(lambda stage: timeline.ends[stage] - timeline.starts[stage])
        rank = self._column(self._ranks)
        return OperationTable(
            step=self._column(lambda _: np.arange(self._steps, dtype=np.int64)[:, None, None, None]),
            rank=rank,
            operation=self._of_each(lambda each: number[each.operation], np.int32),
            kind=self._of_each(lambda each: each.kind, np.int8),
            start_seconds=starts + clock_offset_seconds[rank],
            duration_seconds=seconds,
            stage=self._column(lambda stage: np.array(stage, dtype=np.int32)),
            replica=self._column(lambda _: np.arange(self._shape.data_parallel, dtype=np.int32)[:, None]),
            microbatch=self._of_each(lambda each: each.microbatch, np.int32),
            group=self._column(self._groups),
            work=self._column(lambda stage: self._work(stage, work)),
            operations=self.operations,
            groups=tuple(self._group_numbers),
        )

    def _column(self, of_stage: Callable[[int], NDArray[_Scalar]]) -> NDArray[_Scalar]:
        """One flat column: values by stage, broadcast to its steps, operations, replicas and shards."""
        parts = [
            np.broadcast_to(of_stage(stage), self._size(stage)).ravel() for stage in range(len(self._program))
        ]
        return np.concatenate(parts)

    def _of_each(self, value: Callable[[Planned], int], dtype: type[_Scalar]) -> NDArray[_Scalar]:
        def of_stage(stage: int) -> NDArray[_Scalar]:
            values = [value(each) for each in self._program[stage]]
            return np.array(values, dtype=dtype)[None, :, None, None]

        return self._column(of_stage)

    def _size(self, stage: int) -> tuple[int, int, int, int]:
        shape = self._shape
        return self._steps, len(self._program[stage]), shape.data_parallel, shape.tensor_parallel

    def _ranks(self, stage: int) -> NDArray[np.int64]:
        shape = self._shape
        first = shape.rank(stage, 0, 0)
        return np.arange(first, first + shape.ranks_per_stage).reshape(
            shape.data_parallel, shape.tensor_parallel
        )

    def _groups(self, stage: int) -> NDArray[np.int32]:
        """Number of the process group, of shape (1, operation, replica, shard)."""
        planned, shape = self._program[stage], self._shape
        numbers = np.zeros((1, len(planned), shape.data_parallel, shape.tensor_parallel), dtype=np.int32)
        for transfer in sorted({each.transfer for each in planned}, key=lambda each: each.value):
            operations = [index for index, each in enumerate(planned) if each.transfer is transfer]
            numbers[0, operations] = [
                [
                    self._group_number(_group_name(transfer, stage, replica, shard))
                    for shard in range(shape.tensor_parallel)
                ]
                for replica in range(shape.data_parallel)
            ]
        return numbers

    def _group_number(self, name: str) -> int:
        return self._group_numbers.setdefault(name, len(self._group_numbers))

    def _work(self, stage: int, work: Floats | None) -> Floats:
        planned, shape = self._program[stage], self._shape
        units = np.full((self._steps, len(planned), shape.data_parallel), np.nan)
        if work is not None:
            passes = [at for at, each in enumerate(planned) if each.operation in ("forward", "backward")]
            microbatches = [planned[index].microbatch for index in passes]
            units[:, passes] = work[:, :, microbatches].transpose(0, 2, 1)
        return units[..., None]


def _group_name(transfer: Transfer, stage: int, replica: int, shard: int) -> str:
    return {
        Transfer.NONE: "",
        Transfer.SHARDS: f"tp-{stage}-{replica}",
        Transfer.REPLICAS: f"dp-{stage}-{shard}",
        Transfer.WORLD: "world",
        Transfer.SEND: f"pp-{replica}-{shard}",
        Transfer.RECEIVE: f"pp-{replica}-{shard}",
    }[transfer]
