"""The table of operations of a simulated job: what its recorder writes of each stage, as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.simulation.program import Program, Transfer
from rankwatch_diagnosis.simulation.recorder import EXACT, PASSES, Recorder, Row, rows_of
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.timeline import Floats, Timeline

_Scalar = TypeVar("_Scalar", bound=np.generic)


class OperationRows:
    """Builds the columns of a table, stage after stage, and in each by step, operation and rank."""

    def __init__(
        self, shape: JobShape, program: Program, steps: NDArray[np.int64], recorder: Recorder = EXACT
    ) -> None:
        """`steps` are their numbers."""
        self._shape, self._steps, self._recorder = shape, steps, recorder
        self._rows = [tuple(rows_of(stage, recorder)) for stage in program]
        self.operations = tuple(sorted({each.operation for stage in self._rows for each in stage}))
        self._group_numbers: dict[str, int] = {"": 0}

    def table(self, timeline: Timeline, clock_offset_seconds: Floats, work: Floats | None) -> OperationTable:
        """`work` is (step, replica, microbatch), written on forward and backward; None: no work units."""
        number = {name: index for index, name in enumerate(self.operations)}
        starts = self._column(lambda stage: timeline.starts[stage][:, self._first(stage)])
        seconds = self._column(lambda stage: self._seconds(timeline, stage))
        rank = self._column(self._ranks)
        table = OperationTable(
            step=self._column(lambda _: self._steps[:, None, None, None]),
            rank=rank,
            operation=self._of_each(lambda each: number[each.operation], np.int32),
            kind=self._of_each(lambda each: each.planned.kind, np.int8),
            start_seconds=starts + clock_offset_seconds[rank],
            duration_seconds=seconds,
            stage=self._column(lambda stage: np.array(stage, dtype=np.int32)),
            replica=self._column(lambda _: np.arange(self._shape.data_parallel, dtype=np.int32)[:, None]),
            microbatch=self._of_each(lambda each: each.planned.microbatch, np.int32),
            group=self._column(self._groups),
            work=self._column(lambda stage: self._work(stage, work)),
            operations=self.operations,
            groups=tuple(self._group_numbers),
        )
        if not self._recorder.one_per_tensor_group:
            return table
        return table.take(table.rank % self._shape.tensor_parallel == 0)

    def _first(self, stage: int) -> list[int]:
        return [each.first for each in self._rows[stage]]

    def _seconds(self, timeline: Timeline, stage: int) -> Floats:
        last = [each.last for each in self._rows[stage]]
        seconds: Floats = timeline.ends[stage][:, last] - timeline.starts[stage][:, self._first(stage)]
        return seconds

    def _column(self, of_stage: Callable[[int], NDArray[_Scalar]]) -> NDArray[_Scalar]:
        """One flat column: values by stage, broadcast to its steps, operations, replicas and shards."""
        parts = [
            np.broadcast_to(of_stage(stage), self._size(stage)).ravel() for stage in range(len(self._rows))
        ]
        return np.concatenate(parts)

    def _of_each(self, value: Callable[[Row], int], dtype: type[_Scalar]) -> NDArray[_Scalar]:
        def of_stage(stage: int) -> NDArray[_Scalar]:
            values = [value(each) for each in self._rows[stage]]
            return np.array(values, dtype=dtype)[None, :, None, None]

        return self._column(of_stage)

    def _size(self, stage: int) -> tuple[int, int, int, int]:
        shape = self._shape
        return len(self._steps), len(self._rows[stage]), shape.data_parallel, shape.tensor_parallel

    def _ranks(self, stage: int) -> NDArray[np.int64]:
        shape = self._shape
        first = shape.rank(stage, 0, 0)
        return np.arange(first, first + shape.ranks_per_stage).reshape(
            shape.data_parallel, shape.tensor_parallel
        )

    def _groups(self, stage: int) -> NDArray[np.int32]:
        """Number of the process group, of shape (1, operation, replica, shard)."""
        rows, shape = self._rows[stage], self._shape
        numbers = np.zeros((1, len(rows), shape.data_parallel, shape.tensor_parallel), dtype=np.int32)
        for transfer in sorted({each.transfer for each in rows}, key=lambda each: each.value):
            operations = [index for index, each in enumerate(rows) if each.transfer is transfer]
            numbers[0, operations] = [
                [
                    self._group_number(self._group_name(transfer, stage, replica, shard))
                    for shard in range(shape.tensor_parallel)
                ]
                for replica in range(shape.data_parallel)
            ]
        return numbers

    def _group_number(self, name: str) -> int:
        return self._group_numbers.setdefault(name, len(self._group_numbers))

    def _work(self, stage: int, work: Floats | None) -> Floats:
        rows, shape = self._rows[stage], self._shape
        units = np.full((len(self._steps), len(rows), shape.data_parallel), np.nan)
        if work is not None:
            passes = [at for at, each in enumerate(rows) if each.planned.operation in PASSES]
            microbatches = [rows[index].planned.microbatch for index in passes]
            units[:, passes] = work[:, :, microbatches].transpose(0, 2, 1)
        return units[..., None]

    def _group_name(self, transfer: Transfer, stage: int, replica: int, shard: int) -> str:
        if not self._recorder.groups:
            return ""
        return (_megatron_group if self._recorder.megatron else _group)(transfer, stage, replica, shard)


def _group(transfer: Transfer, stage: int, replica: int, shard: int) -> str:
    return {
        Transfer.NONE: "",
        Transfer.SHARDS: f"tp-{stage}-{replica}",
        Transfer.REPLICAS: f"dp-{stage}-{shard}",
        Transfer.STAGE: f"stage-{stage}",
        Transfer.PIPELINE: f"replica-{replica}",
        Transfer.ENDS: f"ends-{replica}-{shard}",
        Transfer.WORLD: "world",
        Transfer.SEND: f"pp-{replica}-{shard}",
        Transfer.RECEIVE: f"pp-{replica}-{shard}",
    }[transfer]


def _megatron_group(transfer: Transfer, stage: int, replica: int, shard: int) -> str:
    """Of compute there is none, and a message names none."""
    return {
        Transfer.SHARDS: f"tensor-of-stage-{stage}-replica-{replica}",
        Transfer.REPLICAS: f"dp-of-stage-{stage}" + (f"-shard-{shard}" if shard else ""),
        Transfer.ENDS: f"ends-of-replica-{replica}" + (f"-shard-{shard}" if shard else ""),
        Transfer.WORLD: "world",
    }.get(transfer, "")
