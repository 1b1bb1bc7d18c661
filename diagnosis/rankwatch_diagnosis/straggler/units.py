"""Compute operations as an array: how long each visit of a microbatch to a rank took, against its role."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes, combine, grouped_median, nan_mean
from rankwatch_diagnosis.straggler.unlike_steps import unlike_steps
from rankwatch_diagnosis.straggler.work_units import explained_by_work, told

_MOST_CELLS_PER_VISIT = 20
"""A table whose ranks take part in few of its steps would blow the array up beyond this."""


class SparseTableError(ValueError):
    """The ranks of the table share too few steps to be compared."""


@dataclass(frozen=True, kw_only=True)
class UnitRows:
    """Where each compute row stands in the array."""

    index: Ints
    """Rows of the table."""
    step: Ints
    rank: Ints
    slot: Ints
    """Microbatch, counted from 0 in each step and replica."""
    role: Ints
    """(stage, operation)"""
    role_operation: Ints
    """By role."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """Logarithms of durations less the role of (stage, operation), and who is who."""

    ranks: Ints
    """Rank numbers, in order; the second axis."""
    steps: Ints
    """Step numbers, in order; the first axis."""
    stage: Ints
    """By rank: the stage of most of its compute."""
    replica: Ints
    """By rank."""
    halves: Floats
    """(2, step, rank, microbatch): means over every other operation of a visit, NaN for none."""
    rows: UnitRows
    role_log: Floats
    """By compute row: logarithm of the seconds of its role."""
    work_log: Floats | None
    """By compute row: what work units explain; None where there are none."""
    work_known: bool
    """Whether rows tell their work, be it all the same."""
    unlike: NDArray[np.bool_]
    """By step: whether it is unlike the others on every rank; its `halves` are NaN."""

    @property
    def visits(self) -> Floats:
        """(step, rank, microbatch): mean over all operations of a visit."""
        return nan_mean(self.halves, axis=0)


def measure(table: OperationTable, *, least_steps: int) -> Units | None:
    """The compute of a table; None where it has none. Raises SparseTableError.

    Fewer than `least_steps` unlike steps in a row are left out.
    """
    index = np.flatnonzero(
        (table.kind == Kind.COMPUTE) & (table.duration_seconds > 0.0) & _of_microbatches(table)
    )
    if index.size == 0:
        return None
    ranks, rank = codes(table.rank[index])
    steps, step = codes(table.step[index])
    stages, stage = codes(table.stage[index])
    operations, operation = codes(table.operation[index])
    roles, role = codes(combine((stage, len(stages)), (operation, len(operations))))
    rows = UnitRows(
        index=index,
        step=step,
        rank=rank,
        slot=_slots(table, index, step, len(steps)),
        role=role,
        role_operation=roles % len(operations),
    )
    cells = len(steps) * len(ranks) * (int(rows.slot.max()) + 1)
    if cells > _MOST_CELLS_PER_VISIT * (index.size + 1_000):
        raise SparseTableError("the ranks of the table share too few steps")
    return _residuals(table, rows, ranks, steps, least_steps)


def _of_microbatches(table: OperationTable) -> NDArray[np.bool_]:
    """Operations on data. An optimizer's time says nothing of a microbatch, and it is no forward."""
    on_data = np.array(["optim" not in name.lower() for name in table.operations], dtype=np.bool_)
    compute = np.zeros(len(table.operations), dtype=np.bool_)
    compute[np.unique(table.operation[table.kind == Kind.COMPUTE])] = True
    if not (on_data & compute).any():
        on_data[:] = True
    return on_data[table.operation]


def _slots(table: OperationTable, index: Ints, step: Ints, steps: int) -> Ints:
    """Microbatches counted from 0 in each step and replica, whatever the numbers in the table."""
    replicas, replica = codes(table.replica[index])
    microbatches, microbatch = codes(table.microbatch[index])
    key = combine((step, steps), (replica, len(replicas)), (microbatch, len(microbatches)))
    distinct, inverse = codes(key)
    place = distinct // len(microbatches)
    first = np.searchsorted(place, place)
    slots: Ints = (np.arange(len(distinct)) - first)[inverse]
    return slots


def _residuals(table: OperationTable, rows: UnitRows, ranks: Ints, steps: Ints, least_steps: int) -> Units:
    seconds = table.duration_seconds[rows.index]
    logarithm = np.log(seconds)
    role_log = grouped_median(logarithm, rows.role, len(rows.role_operation))
    residual = logarithm - role_log[rows.role]
    by_work = explained_by_work(residual, table.work[rows.index], rows.role, len(rows.role_operation))
    if by_work is not None:
        residual = residual - by_work
    halves = _halves(residual, rows, len(steps), len(ranks))
    unlike = unlike_steps(nan_mean(halves, axis=0), least_steps)
    halves[:, unlike] = np.nan
    return Units(
        ranks=ranks,
        steps=steps,
        stage=_by_rank(table.stage[rows.index], rows.rank, len(ranks)),
        replica=_by_rank(table.replica[rows.index], rows.rank, len(ranks)),
        halves=halves,
        rows=rows,
        role_log=role_log[rows.role],
        work_log=by_work,
        work_known=told(table.work[rows.index]),
        unlike=unlike,
    )


def _by_rank(values: NDArray[np.integer], rank: Ints, ranks: int) -> Ints:
    """The value of most rows of each rank."""
    return np.rint(grouped_median(values.astype(np.float64), rank, ranks)).astype(np.int64)


def _halves(residual: Floats, rows: UnitRows, steps: int, ranks: int) -> Floats:
    slots = int(rows.slot.max()) + 1
    half = rows.role_operation[rows.role] % 2
    key = combine((half, 2), (rows.step, steps), (rows.rank, ranks), (rows.slot, slots))
    size = 2 * steps * ranks * slots
    count = np.bincount(key, minlength=size)
    total = np.bincount(key, weights=residual, minlength=size)
    mean: Floats = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return mean.reshape(2, steps, ranks, slots)
