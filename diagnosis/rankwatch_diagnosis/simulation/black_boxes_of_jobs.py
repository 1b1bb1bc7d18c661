"""The black boxes of a simulated job, written from its table of operations: both tell the same truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rankwatch.conventions import DATA_WAIT, PHASES, TOKENS
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.simulation.black_boxes import SimulatedBox, check_size, identity_of
from rankwatch_diagnosis.simulation.loss_curve import losses
from rankwatch_diagnosis.simulation.shape import JobShape

_PHASE_OF: Mapping[str, str] = MappingProxyType({"data_loading": DATA_WAIT})
"""Operations of the simulator whose phase has another name. What is no phase, such as host work, is a gap."""
_WORKED = "forward"
"""The operation whose work units are told: backward has the same ones."""
_LABELS: Mapping[str, str] = MappingProxyType(
    {"world": "default_pg", "dp": "mesh_dp", "tp": "mesh_tp", "pp": "mesh_pp"}
)
_BYTES: Mapping[str, int] = MappingProxyType({"world": 4, "dp": 52_428_800, "tp": 4_194_304, "pp": 4_194_304})
_EARLIEST = -1.0
"""Seconds: clocks of nodes may be behind that of the run, by no more than this."""


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
    """One box for each rank: DIRECTORY/RUN/RANK.blackbox. Raises BlackBoxError; UserError for too many."""
    for box, moments in job_boxes(table, shape, directory, run=run, seed=seed):
        try:
            for _ in moments:
                pass
        finally:
            box.close()


def job_boxes(
    table: OperationTable, shape: JobShape, directory: Path, *, run: str, seed: int = 0
) -> Iterator[tuple[SimulatedBox, Iterator[float]]]:
    """Each rank's box as the run begins, to be closed by the caller, and the moments at which it grows.

    A moment is the end of an operation, in seconds since the run began; the operation is written when the
    next moment is asked for. Raises BlackBoxError; UserError for too many.
    """
    order = np.lexsort((table.start_seconds, table.step, table.rank))
    bounds = np.flatnonzero(np.r_[True, np.diff(table.rank[order]) != 0, True])
    steps = np.unique(table.step)
    by_step = dict(zip(steps.tolist(), losses(len(steps), seed), strict=True))
    groups = _groups(table)
    longest = int(np.diff(bounds).max())
    check_size(shape.ranks, _records(longest, shape, len(steps)))
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
        group = (_LABELS[plane], groups.members[row.group])
        box.communication(row.operation, group, _BYTES[plane], row.start, end)
        return
    phase = _PHASE_OF.get(row.operation, row.operation)
    if phase in PHASES:
        box.phase(phase, row.start, end)
    if row.operation == _WORKED and not np.isnan(row.work):
        box.work(TOKENS, row.work, row.step, end)
