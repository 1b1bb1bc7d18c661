"""What a recorder writes about a run: which rows, how its clocks lie, and the table of both.

The exact recorder writes each operation as it was. Recorders of production jobs leave out waits, write a
batch of messages as two rows with one start and one duration, follow one rank of each tensor-parallel group,
and read coarse clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.simulation.program import NORM, UNRECORDED, JobShape, Planned, Program, Transfer
from bench.simulation.timeline import Floats, Timeline
from rankwatch_diagnosis.operations.table import OperationTable

NO_MICROBATCH = -1
PASSES = ("forward", "backward")
_WITH_MICROBATCH = (*PASSES, "gc")
_MESSAGES = (Transfer.SEND, Transfer.RECEIVE)
_MOST_DEVIATIONS = 3.0
"""Clock errors are bounded: they come from the resolution of the clock and from the work of reading it."""
_MOST_STEPS_LEFT_OUT = 8
"""Between two recorded steps."""


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """What is recorded. The default is the exact recorder: every operation, as it was."""

    hides_waits: bool = False
    """Waits at barriers and for input, and stalls, have no row; the tensor-parallel collectives lie in the
    rows of forward and backward, and the wait for the global gradient norm in that of the clipping."""
    one_per_tensor_group: bool = False
    """The first rank of each tensor-parallel group is recorded, so the numbers of ranks have gaps."""
    sends: bool = True
    receives: bool = True
    groups: bool = True
    """Process groups of collectives are known."""
    megatron: bool = False
    """Names are those of Megatron. Only passes have a microbatch, and messages have no group."""
    samples_steps: bool = False
    """Not all steps are recorded, and the clock starts at zero in each one."""
    fuzz_seconds: float = 0.0
    """Standard deviation of the error of a start and of a duration, at most 3 times as large."""
    launch_seconds: float = 0.0
    """From the end of an operation to the recorded start of the next one."""

    def recorded(self, shape: JobShape, ranks: Sequence[int]) -> tuple[int, ...]:
        """The recorded ranks in whose rows the work of these ranks shows."""
        size = shape.tensor_parallel if self.one_per_tensor_group else 1
        return tuple(sorted({rank - rank % size for rank in ranks}))

    def step_numbers(self, steps: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Numbers of the recorded steps."""
        if not self.samples_steps:
            return np.arange(steps, dtype=np.int64)
        numbers: NDArray[np.int64] = np.cumsum(random.integers(1, _MOST_STEPS_LEFT_OUT + 2, steps))
        return numbers

    def as_read(self, timeline: Timeline, random: np.random.Generator) -> Timeline:
        """The timeline as the clocks of this recorder show it, each rank by its own clock."""
        starts = tuple(self._misread(each + self.launch_seconds, random) for each in timeline.starts)
        ends = tuple(self._misread(each, random) for each in timeline.ends)
        ends = tuple(np.maximum(start, end) for start, end in zip(starts, ends, strict=True))
        if self.samples_steps:
            began = np.min([each[:, 0].min(axis=(1, 2)) for each in timeline.starts], axis=0)
            starts, ends = (
                tuple(each - began[:, None, None, None] for each in moments) for moments in (starts, ends)
            )
        return Timeline(starts, ends)

    def _misread(self, moments: Floats, random: np.random.Generator) -> Floats:
        if self.fuzz_seconds == 0.0:
            return moments
        errors = np.clip(random.standard_normal(moments.shape), -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
        misread: Floats = moments + self.fuzz_seconds * errors
        return misread


EXACT = Recorder()


class Row(NamedTuple):
    """A row that a stage writes in each step, for operations `first` to `last` of its program."""

    first: int
    last: int
    operation: str
    planned: Planned
    transfer: Transfer


def rows_of(operations: tuple[Planned, ...], recorder: Recorder) -> Iterator[Row]:
    """A batch of messages is two rows. A hidden wait is part of the row that it lies in, or of none."""
    for index, planned in enumerate(operations):
        if recorder.hides_waits and planned.operation in UNRECORDED:
            continue
        if planned.transfer is Transfer.EXCHANGE:
            yield from _batch(planned, index, recorder)
            continue
        if planned.transfer in _MESSAGES:
            yield from _message(planned, index, planned.transfer, planned.of, recorder)
            continue
        first = last = index
        if recorder.hides_waits:
            if planned.operation == NORM or _is_of_pass(planned):
                continue
            first -= index > 0 and operations[index - 1].operation == NORM
            last += index + 1 < len(operations) and _is_of_pass(operations[index + 1])
        if recorder.megatron and planned.operation not in _WITH_MICROBATCH:
            planned = planned._replace(microbatch=NO_MICROBATCH)
        yield Row(first, last, _name(planned, recorder), planned, planned.transfer)


def _is_of_pass(planned: Planned) -> bool:
    """True for the tensor-parallel collectives of a forward or backward."""
    return planned.transfer is Transfer.SHARDS and planned.of in PASSES


def _batch(planned: Planned, index: int, recorder: Recorder) -> Iterator[Row]:
    if planned.received is not None:
        received = planned._replace(microbatch=planned.received.microbatch)
        yield from _message(received, index, Transfer.RECEIVE, planned.received.operation, recorder)
    if planned.message is not None:
        sent = planned._replace(microbatch=planned.message.microbatch)
        yield from _message(sent, index, Transfer.SEND, planned.message.operation, recorder)


def _message(
    planned: Planned, index: int, transfer: Transfer, direction: str, recorder: Recorder
) -> Iterator[Row]:
    if not (recorder.sends if transfer is Transfer.SEND else recorder.receives):
        return
    name = "send" if transfer is Transfer.SEND else "recv"
    if recorder.megatron:
        planned, name = planned._replace(microbatch=NO_MICROBATCH), f"{direction}-{name}"
    yield Row(index, index, name, planned, transfer)


def _name(planned: Planned, recorder: Recorder) -> str:
    if not recorder.megatron:
        return planned.operation
    return (
        f"{planned.operation}-compute" if planned.operation in PASSES else planned.operation.replace("_", "-")
    )


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
