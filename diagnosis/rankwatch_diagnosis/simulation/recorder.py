"""What a recorder writes about a run: which rows, and how its clocks lie.

The exact recorder writes each operation as it was. Recorders of production jobs leave out waits, write a
batch of messages as two rows with one start and one duration, follow one rank of each tensor-parallel group,
and read coarse clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.megatron import NORM, UNRECORDED
from rankwatch_diagnosis.simulation.program import Planned, Transfer
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.timeline import Floats, Timeline

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

    def __post_init__(self) -> None:
        """Raises UserError for a time below 0 or above a second."""
        for name in ("fuzz_seconds", "launch_seconds"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} is {getattr(self, name)}, expected 0 to 1")

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
