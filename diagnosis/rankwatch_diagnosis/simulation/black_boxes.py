"""A black box that tells of simulated time: written by the real writer, with the clocks of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import LOSS, PHASES, Lifecycle
from rankwatch.identity import Identity
from rankwatch.members import members_text
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.shape import JobShape

BEGAN_MONOTONIC = 1_000.0
BEGAN_WALL = 1_760_000_000.0
"""The moment at which every simulated run begins, on both clocks, in seconds: a seed gives the same boxes
at any time, and dumps and boxes of one job agree."""
RANKS_PER_NODE = 8
MOST_BYTES = 4 << 30
"""Of all boxes of a run."""
_LEAST_CAPACITY = 256
_SPARE_RECORDS = 192
"""A reader does not trust the slots in front of a writer, and a ring that is not full loses nothing."""
_PID_FIELD, _MONOTONIC_FIELD, _WALL_FIELD = 13, 14, 15
"""Places in `layout.FIXED`."""
_PID = 4_000


def capacity_for(records: int) -> int:
    """Records the ring must hold for so many: as many as a real one at most, older ones are overwritten."""
    return min(layout.DEFAULT_CAPACITY, max(_LEAST_CAPACITY, records + _SPARE_RECORDS))


def check_size(ranks: int, records: int) -> None:
    """Raises UserError where the boxes of so many ranks with so many records each would fill a disk."""
    size = ranks * (layout.RING_OFFSET + capacity_for(records) * layout.RECORD_SIZE)
    if size > MOST_BYTES:
        raise UserError(f"the black boxes would take {size:,} bytes, expected at most {MOST_BYTES:,}")


def identity_of(shape: JobShape, rank: int, run: str) -> Identity:
    """Who a simulated rank is."""
    stage, replica, shard = shape.place(rank)
    return Identity(
        run=run,
        rank=rank,
        world_size=shape.ranks,
        local_rank=rank % RANKS_PER_NODE,
        host=f"node-{rank // RANKS_PER_NODE}",
        coordinates={
            "dp": (replica, shape.data_parallel),
            "pp": (stage, shape.pipeline_parallel),
            "tp": (shard, shape.tensor_parallel),
        },
    )


class SimulatedBox:
    """The black box of one simulated rank. Moments are seconds since the run began.

    Raises BlackBoxError where the file cannot be created.
    """

    def __init__(self, directory: Path, identity: Identity, *, records: int, target_steps: int) -> None:
        self._writer = Writer(
            directory, identity, phases=PHASES, target_steps=target_steps, capacity=capacity_for(records)
        )
        fields = list(layout.FIXED.unpack_from(self._writer.target))
        fields[_PID_FIELD] = _PID + identity.rank
        fields[_MONOTONIC_FIELD], fields[_WALL_FIELD] = BEGAN_MONOTONIC, BEGAN_WALL
        layout.FIXED.pack_into(self._writer.target, 0, *fields)
        self._groups: dict[tuple[str, str], int] = {}
        self._counts: list[int] = []
        self._messages: list[int] = []
        self._life(Lifecycle.STARTED, -1, 0.0)

    def phase(self, name: str, start: float, end: float | None) -> None:
        """A phase; without an end it is open when the rank stops."""
        number = self._writer.name_number(name)
        began = BEGAN_MONOTONIC + start
        self._writer.floats[Now.PHASE_BEGAN + number] = began
        if end is not None:
            self._append(RecordKind.PHASE, number, start, end)

    def step_begins(self, number: int, start: float) -> None:
        """A step is open from here on."""
        self._writer.integers[Now.STEP] = number
        self._writer.floats[Now.STEP_BEGAN] = BEGAN_MONOTONIC + start

    def step_ends(self, number: int, start: float, end: float, loss: float) -> None:
        """The step is complete, with this loss."""
        writer = self._writer
        scalar = writer.name_number(LOSS)
        writer.append(RecordKind.SCALAR, scalar, *_moments(end, end), layout.SCALAR, loss, number)
        writer.floats[Now.LOSS] = loss
        writer.append(RecordKind.STEP, 0, *_moments(start, end), layout.STEP, number, 0)
        writer.floats[Now.STEP_BEGAN] = 0.0
        writer.floats[Now.STEP_ENDED] = BEGAN_MONOTONIC + end
        writer.integers[Now.STEPS_COMPLETED] += 1

    def work(self, unit: str, amount: float, step: int, moment: float) -> None:
        """Work done in a step."""
        number = self._writer.name_number(unit)
        self._writer.append(RecordKind.WORK, number, *_moments(moment, moment), layout.WORK, amount, step)

    def communication(
        self,
        operation: str,
        group: tuple[str, Sequence[int]],
        size: int,
        start: float,
        end: float | None,
    ) -> None:
        """A collective, send or receive in a group (label, members); without an end the rank waits in it."""
        writer = self._writer
        row = self._row(group)
        name = writer.name_number(operation)
        message = operation in ("send", "recv")
        counts = self._messages if message else self._counts
        count = counts[row]
        counts[row] += 1
        writer.integers[Now.GROUP_OPERATION + row] = name
        if not message:
            writer.integers[Now.GROUP_ENQUEUED + row] = count + 1
        if end is None:
            writer.floats[Now.GROUP_OLDEST + row] = BEGAN_MONOTONIC + start
            return
        flags = layout.BLOCKING | (layout.POINT_TO_POINT if message else 0)
        writer.append(
            RecordKind.COLLECTIVE, name, *_moments(start, end), layout.COLLECTIVE,
            size, count, writer.integers[Now.GROUP_NAME + row], flags, 0.0,
        )  # fmt: skip

    def finish(self, step: int, moment: float) -> None:
        """The run reached its end on this rank."""
        self._life(Lifecycle.FINISHED, step, moment)

    def close(self) -> None:
        """Give the lock back: the rank is gone."""
        self._writer.unlock()

    def _row(self, group: tuple[str, Sequence[int]]) -> int:
        label, ranks = group
        key = (label, members_text(ranks))
        row = self._groups.get(key)
        if row is None:
            row = self._groups[key] = len(self._groups)
            integers = self._writer.integers
            integers[Now.GROUP_NAME + row] = self._writer.new_name(label)
            integers[Now.GROUP_MEMBERS + row] = self._writer.name_number(key[1])
            integers[Now.GROUP_SIZE + row] = len(ranks)
            integers[Now.GROUPS] = row + 1
            self._counts.append(0)
            self._messages.append(0)
        return row

    def _append(self, kind: RecordKind, name: int, start: float, end: float) -> None:
        self._writer.append(kind, name, *_moments(start, end), layout.STEP, 0, 0)

    def _life(self, event: Lifecycle, step: int, moment: float) -> None:
        name = self._writer.name_number(event)
        self._writer.append(RecordKind.LIFECYCLE, name, *_moments(moment, moment), layout.LIFECYCLE, step, 0)


def _moments(start: float, end: float) -> tuple[float, float]:
    return BEGAN_MONOTONIC + start, BEGAN_MONOTONIC + end
