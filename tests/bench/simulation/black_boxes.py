"""Black boxes of a simulated job, written by the real writer with the clocks of the simulation.

They are written from the job's table of operations, so that both hold the same truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.simulation.program import RANKS_PER_NODE, JobShape
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.vocabulary import DATA_WAIT, LOSS, PHASES, TOKENS, Lifecycle
from rankwatch.identity import Identity
from rankwatch.members import members_text
from rankwatch_diagnosis.operations.table import Kind, OperationTable

BEGAN_MONOTONIC = 1_000.0
BEGAN_WALL = 1_760_000_000.0
"""Start of every simulated run on both clocks, in seconds: a seed gives the same boxes at any time, and dumps
and boxes of one job agree."""
_LEAST_CAPACITY = 256
_SPARE_RECORDS = 192
"""A reader does not trust the slots in front of a writer, and a ring that is not full loses nothing."""
_PID_FIELD, _MONOTONIC_FIELD, _WALL_FIELD = 13, 14, 15
"""Places in `layout.FIXED`."""
_NO_PLAN = (0.0, 0.0, 0, 0)
"""No deadline, and not the start of this process."""
_PID = 4_000
_PHASE_OF: Mapping[str, str] = MappingProxyType(
    {"data_loading": DATA_WAIT, "wait_for_batch": DATA_WAIT, "optimizer_clip_main_grad": "optimizer"}
)
"""Operations of the simulator whose phase has another name. What is no phase, such as host work, is a gap."""
_WORKED = "forward"
"""The operation whose units of work are recorded: backward has the same ones."""
_GROUPS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "world": ("default_pg", 4),
        "dp": ("mesh_dp", 52_428_800),
        "tp": ("mesh_tp", 4_194_304),
        "pp": ("mesh_pp", 4_194_304),
        "stage": ("stage", 4),
        "replica": ("replica", 4),
        "ends": ("embedding", 52_428_800),
    }
)
"""By plane: label of its groups, and bytes of an operation."""
_EARLIEST = -1.0
"""Seconds: clocks of nodes may be behind that of the run, by no more than this."""
_FIRST_LOSS, _LAST_LOSS, _LOSS_POWER, _LOSS_NOISE = 10.0, 2.0, 0.5, 0.01


def identity_of(shape: JobShape, rank: int, run: str) -> Identity:
    """Identity of a simulated rank."""
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
        # At most that of a real one, which overwrites older records.
        capacity = min(layout.DEFAULT_CAPACITY, max(_LEAST_CAPACITY, records + _SPARE_RECORDS))
        self._writer = Writer(
            directory, identity, phases=PHASES, target_steps=target_steps, capacity=capacity
        )
        fields = list(layout.FIXED.unpack_from(self._writer.target))
        fields[_PID_FIELD] = _PID + identity.rank
        fields[_MONOTONIC_FIELD], fields[_WALL_FIELD] = BEGAN_MONOTONIC, BEGAN_WALL
        layout.FIXED.pack_into(self._writer.target, 0, *fields)
        layout.PLAN.pack_into(self._writer.target, layout.PLAN_OFFSET, *_NO_PLAN)
        self._groups: dict[tuple[str, str], int] = {}
        self._counts: list[int] = []
        self._messages: list[int] = []
        self._life(Lifecycle.STARTED, -1, 0.0)

    def phase(self, name: str, start: float, end: float | None) -> None:
        """Record a phase; without an end it is open when the rank stops."""
        number = self._writer.name_number(name)
        began = BEGAN_MONOTONIC + start
        self._writer.floats[Now.PHASE_BEGAN + number] = began
        if end is not None:
            self._writer.append(RecordKind.PHASE, number, *_moments(start, end), layout.STEP, 0, 0)

    def step_begins(self, number: int, start: float) -> None:
        """Open a step."""
        self._writer.integers[Now.STEP] = number
        self._writer.floats[Now.STEP_BEGAN] = BEGAN_MONOTONIC + start

    def step_ends(self, number: int, start: float, end: float, loss: float) -> None:
        """Complete the step, with this loss."""
        writer = self._writer
        scalar = writer.name_number(LOSS)
        writer.append(RecordKind.SCALAR, scalar, *_moments(end, end), layout.SCALAR, loss, number)
        writer.floats[Now.LOSS] = loss
        writer.append(RecordKind.STEP, 0, *_moments(start, end), layout.STEP, number, 0)
        writer.floats[Now.STEP_BEGAN] = 0.0
        writer.floats[Now.STEP_ENDED] = BEGAN_MONOTONIC + end
        writer.integers[Now.STEPS_COMPLETED] += 1

    def work(self, unit: str, amount: float, step: int, moment: float) -> None:
        """Record work done in a step."""
        number = self._writer.name_number(unit)
        self._writer.append(RecordKind.WORK, number, *_moments(moment, moment), layout.WORK, amount, step)

    def communication(
        self, operation: str, group: tuple[str, Sequence[int]], size: int, start: float, end: float | None
    ) -> None:
        """Record a collective, send or receive in a group (label, members); without an end the rank waits."""
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
        """Record that the run reached its end on this rank."""
        self._life(Lifecycle.FINISHED, step, moment)

    def close(self) -> None:
        """Release the lock: the rank is gone."""
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

    def _life(self, event: Lifecycle, step: int, moment: float) -> None:
        name = self._writer.name_number(event)
        self._writer.append(RecordKind.LIFECYCLE, name, *_moments(moment, moment), layout.LIFECYCLE, step, 0)


def _moments(start: float, end: float) -> tuple[float, float]:
    return BEGAN_MONOTONIC + start, BEGAN_MONOTONIC + end


def losses(steps: int, seed: int) -> list[float]:
    """By step: a power law with noise of 1 %, as most losses have it; the same on all ranks."""
    noise = np.random.default_rng([seed, steps]).standard_normal(steps)
    curve = _LAST_LOSS + (_FIRST_LOSS - _LAST_LOSS) * (np.arange(steps) + 1.0) ** -_LOSS_POWER
    return [float(each) for each in curve * (1.0 + _LOSS_NOISE * noise)]


class _Row(NamedTuple):
    step: int
    start: float
    seconds: float
    operation: str
    kind: int
    group: int
    work: float


class _Groups(NamedTuple):
    """By number of a group in the table."""

    plane: list[str]
    members: list[tuple[int, ...]]


def write_job_boxes(
    table: OperationTable, shape: JobShape, directory: Path, *, run: str, seed: int = 0
) -> None:
    """One box for each rank: DIRECTORY/RUN/RANK.blackbox. Raises BlackBoxError."""
    for box, moments in job_boxes(table, shape, directory, run=run, seed=seed):
        try:
            for _ in moments:
                pass
        finally:
            box.close()


def job_boxes(
    table: OperationTable, shape: JobShape, directory: Path, *, run: str, seed: int = 0
) -> Iterator[tuple[SimulatedBox, Iterator[float]]]:
    """Each rank's box as the run begins, to be closed by the caller, and the moments at which it grows. A
    moment is the end of an operation, in seconds since the run began; the operation is written when the next
    moment is asked for. Raises BlackBoxError."""
    order = np.lexsort((table.start_seconds, table.step, table.rank))
    bounds = np.flatnonzero(np.r_[True, np.diff(table.rank[order]) != 0, True])
    steps = np.unique(table.step)
    by_step = dict(zip(steps.tolist(), losses(len(steps), seed), strict=True))
    groups = _groups(table)
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = _rows(table, order[first:end])
        box = SimulatedBox(
            directory,
            identity_of(shape, int(table.rank[order[first]]), run),
            records=_records(len(rows), shape, len(steps)),
            target_steps=len(steps),
        )
        yield box, _written(box, rows, groups, by_step)


def _records(rows: int, shape: JobShape, steps: int) -> int:
    return rows + steps * (shape.microbatches + 2) + 2


def _groups(table: OperationTable) -> _Groups:
    members: list[list[int]] = [[] for _ in table.groups]
    pairs = np.unique(np.stack([table.group.astype(np.int64), table.rank]), axis=1)
    for group, rank in pairs.T.tolist():
        members[group].append(rank)
    return _Groups([name.partition("-")[0] for name in table.groups], [tuple(each) for each in members])


def _rows(table: OperationTable, index: np.ndarray) -> list[_Row]:
    columns = (
        table.step[index].tolist(),
        np.maximum(table.start_seconds[index], _EARLIEST).tolist(),
        table.duration_seconds[index].tolist(),
        [table.operations[each] for each in table.operation[index].tolist()],
        table.kind[index].tolist(),
        table.group[index].tolist(),
        table.work[index].tolist(),
    )
    return [_Row(*each) for each in zip(*columns, strict=True)]


def _written(
    box: SimulatedBox, rows: list[_Row], groups: _Groups, loss: Mapping[int, float]
) -> Iterator[float]:
    began = rows[0].start
    box.step_begins(rows[0].step, began)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        end = row.start + row.seconds
        yield end
        _write_row(box, row, end, groups)
        if following is None or following.step != row.step:
            box.step_ends(row.step, began, end, loss[row.step])
            if following is None:
                box.finish(row.step, end)
            else:
                began = following.start
                box.step_begins(following.step, began)


def _write_row(box: SimulatedBox, row: _Row, end: float, groups: _Groups) -> None:
    if row.kind == Kind.COMMUNICATION:
        plane = groups.plane[row.group]
        label, size = _GROUPS[plane]
        box.communication(row.operation, (label, groups.members[row.group]), size, row.start, end)
        return
    phase = _PHASE_OF.get(row.operation, row.operation)
    if phase in PHASES:
        box.phase(phase, row.start, end)
    if row.operation == _WORKED and not np.isnan(row.work):
        box.work(TOKENS, row.work, row.step, end)
