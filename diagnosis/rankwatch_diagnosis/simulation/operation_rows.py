"""A simulated timeline as the table of operations that a diagnosis reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.simulation.program import Meeting, Planned, Program
from rankwatch_diagnosis.simulation.replay import Timeline
from rankwatch_diagnosis.simulation.shape import JobShape

Floats = NDArray[np.float64]
_Numbers = NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class OperationRows:
    """Builds the columns of a table, stage after stage, and in each by step, operation and rank."""

    def __init__(self, shape: JobShape, program: Program, steps: int) -> None:
        self._shape, self._program, self._steps = shape, program, steps
        self.operations = tuple(sorted({each.operation for stage in program for each in stage}))
        self._group_numbers: dict[str, int] = {"": 0}

    def table(self, timeline: Timeline, clock_offset_seconds: Floats, work: Floats | None) -> OperationTable:
        """`work` is (step, replica, microbatch), put on forward and backward; None: no work units."""
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
        """What each stage gives, spread over its steps, operations, replicas and shards; one flat column."""
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

    def _ranks(self, stage: int) -> _Numbers:
        shape = self._shape
        first = shape.rank(stage, 0, 0)
        return np.arange(first, first + shape.ranks_per_stage).reshape(
            shape.data_parallel, shape.tensor_parallel
        )

    def _groups(self, stage: int) -> NDArray[np.int32]:
        """Number of the process group, of shape (1, operation, replica, shard)."""
        planned = self._program[stage]
        shape = self._shape
        numbers = np.zeros((1, len(planned), shape.data_parallel, shape.tensor_parallel), dtype=np.int32)
        meetings = sorted({each.meeting for each in planned}, key=lambda meeting: meeting.value)
        by_meeting = {meeting: self._group_plane(stage, meeting) for meeting in meetings}
        for index, each in enumerate(planned):
            numbers[0, index] = by_meeting[each.meeting]
        return numbers

    def _group_plane(self, stage: int, meeting: Meeting) -> NDArray[np.int32]:
        shape = self._shape
        names = [
            [_group_name(meeting, stage, replica, shard) for shard in range(shape.tensor_parallel)]
            for replica in range(shape.data_parallel)
        ]
        return np.array([[self._group_number(name) for name in row] for row in names], dtype=np.int32)

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


def _group_name(meeting: Meeting, stage: int, replica: int, shard: int) -> str:
    return {
        Meeting.NOBODY: "",
        Meeting.SHARDS: f"tp-{stage}-{replica}",
        Meeting.REPLICAS: f"dp-{stage}-{shard}",
        Meeting.WORLD: "world",
        Meeting.SEND: f"pp-{replica}-{shard}",
        Meeting.RECEIVE: f"pp-{replica}-{shard}",
    }[meeting]
