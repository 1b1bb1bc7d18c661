"""Compute operations as an array: how long each visit of a microbatch to a rank takes, for its role.

A visit is everything that one rank computes on one microbatch in one step. Values are logarithms of seconds
less what the role (stage, operation) and, where the table holds units of work, the work of the microbatch
explain:

    residual = log(seconds) - median over the role - curve of the work
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, cumcount, factorize
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.robust import nan_mean, nan_median

_MOST_CELLS_PER_ROW = 20
"""A table whose ranks take part in few of its steps would need a larger array than this."""
_IRREGULAR_RATIO = 1.5
"""Typical compute of a step over that of the run. A few late ranks do not move the typical one."""
_LEAST_WORK_COVERAGE = 0.9
"""Share of rows whose work must be known. With fewer, rows with and without it would not compare."""
_WORK_BINS = 24
_LEAST_ROWS_PER_BIN = 20
"""So that one slow rank moves no median by much."""
_EQUAL_WORK = 1e-3
"""Standard deviation of the logarithm of work below which all microbatches count as equal."""


class SparseTableError(ValueError):
    """The ranks of the table share too few steps to be compared."""


@dataclass(frozen=True, kw_only=True)
class VisitRows:
    """Where each compute row stands in the array."""

    index: Ints
    """Rows of the table."""
    step: Ints
    rank: Ints
    slot: Ints
    """Microbatch, counted from 0 in each step and replica."""
    operation: Ints
    role: Groups
    """(stage, operation)"""


@dataclass(frozen=True, kw_only=True)
class Visits:
    """Residuals of all visits, and the place of each rank."""

    ranks: Ints
    """Rank numbers, in order; the second axis."""
    steps: Ints
    """Step numbers, in order; the first axis."""
    stage: Ints
    """By rank: the stage of most of its compute."""
    replica: Ints
    """By rank."""
    halves: Floats
    """(2, step, rank, slot): means over every other operation of a visit, NaN for none."""
    rows: VisitRows
    residual_of_row: Floats
    """By compute row."""
    role_log: Floats
    """By compute row: logarithm of the typical seconds of its role."""
    work_log: Floats | None
    """By compute row: what the units of work explain; None where they are unknown or all equal."""
    work_known: bool
    """The table holds units of work, be they all equal."""
    irregular: Bools
    """By step: unlike the other steps on every rank; its `halves` are NaN."""

    @property
    def residuals(self) -> Floats:
        """(step, rank, slot): mean over all operations of a visit."""
        return nan_mean(self.halves, axis=0)


def measure_visits(table: OperationTable, *, least_steps: int) -> Visits | None:
    """Return the compute of a table; None where it has none. Raises SparseTableError.

    Runs of fewer than `least_steps` irregular steps are left out.
    """
    index = np.flatnonzero(works_on_microbatches(table) & (table.duration_seconds > 0.0))
    if index.size == 0:
        return None
    rank, ranks = factorize(table.rank[index])
    step, steps = factorize(table.step[index])
    # Slots: microbatches counted from 0, whatever their numbers in the table are.
    pipeline_step = Groups.by(table.step[index], table.replica[index]).number
    visited = Groups.by(pipeline_step, table.microbatch[index])
    rows = VisitRows(
        index=index,
        step=step,
        rank=rank,
        slot=cumcount(visited.first(pipeline_step))[visited.number],
        operation=table.operation[index].astype(np.int64),
        role=Groups.by(table.stage[index], table.operation[index]),
    )
    cells = len(steps) * len(ranks) * (int(rows.slot.max()) + 1)
    if cells > _MOST_CELLS_PER_ROW * (index.size + 1_000):
        raise SparseTableError("the ranks of the table share too few steps")
    return _visits(table, rows, ranks, steps, least_steps)


def works_on_microbatches(table: OperationTable) -> Bools:
    """Say by row if it is compute other than an optimizer, whose time does not depend on a microbatch."""
    computes = table.kind == Kind.COMPUTE
    on_data = np.array(["optim" not in name.lower() for name in table.operations], dtype=np.bool_)
    compute = np.zeros(len(table.operations), dtype=np.bool_)
    compute[np.unique(table.operation[computes])] = True
    if not (on_data & compute).any():
        on_data[:] = True
    works: Bools = computes & on_data[table.operation]
    return works


def _visits(table: OperationTable, rows: VisitRows, ranks: Ints, steps: Ints, least_steps: int) -> Visits:
    logarithm = np.log(table.duration_seconds[rows.index])
    work = table.work[rows.index]
    role_log = rows.role.median(logarithm)[rows.role.number]
    residual = logarithm - role_log
    known = np.isfinite(work) & (work > 0.0)
    work_known = bool(known.mean() >= _LEAST_WORK_COVERAGE)
    work_log = _explained_by_work(residual, work, known, rows.role) if work_known else None
    if work_log is not None:
        residual = residual - work_log
    half = factorize(rows.operation)[0] % 2
    shape = (2, len(steps), len(ranks), int(rows.slot.max()) + 1)
    cells = Groups.grid(*zip((half, rows.step, rows.rank, rows.slot), shape, strict=True))
    halves = cells.mean(residual).reshape(shape)
    irregular = irregular_steps(nan_mean(halves, axis=0), least_steps)
    halves[:, irregular] = np.nan
    of_rank = Groups(rows.rank, len(ranks))
    return Visits(
        ranks=ranks,
        steps=steps,
        stage=of_rank.whole_median(table.stage[rows.index]),
        replica=of_rank.whole_median(table.replica[rows.index]),
        halves=halves,
        rows=rows,
        residual_of_row=residual,
        role_log=role_log,
        work_log=work_log,
        work_known=work_known,
        irregular=irregular,
    )


def irregular_steps(residuals: Floats, least: int) -> Bools:
    """Find steps whose typical residual is far above that of the run, for fewer than `least` steps in a row.

    The first axis of `residuals` counts steps. In such a step (compiling, warming up, a batch of another
    size) ranks differ for reasons of its own: one finds its kernels in a cache, another compiles them. It
    would drown all other steps. What goes on for `least` steps is a state of the run.
    """
    typical = nan_median(residuals.reshape(len(residuals), -1), axis=1)
    far: Bools = np.nan_to_num(typical - nan_median(typical)) > np.log(_IRREGULAR_RATIO)
    edges = np.flatnonzero(np.diff(np.r_[False, far, False]))
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        far[first:end] = end - first < least
    return far


def _explained_by_work(residual: Floats, work: Floats, known: Bools, role: Groups) -> Floats | None:
    """Return by row what the units of work explain of the residual; None where they are all equal.

    Neither the unit nor the law is known (tokens, squared lengths, a constant part). A line through the
    medians of bins of equal size, for each role, follows any of them.
    """
    logarithm = np.log(np.where(known, work, 1.0))
    if np.std(logarithm[known]) < _EQUAL_WORK:
        return None
    explained = np.zeros(len(residual))
    for part in role.parts():
        rows = part[known[part]]
        if rows.size:
            explained[rows] = _curve(logarithm[rows], residual[rows])
    return explained


def _curve(logarithm: Floats, residual: Floats) -> Floats:
    """Draw by row the line through the medians of bins, which goes on beyond the outermost bins."""
    bins = max(2, min(_WORK_BINS, len(logarithm) // _LEAST_ROWS_PER_BIN))
    order = np.argsort(logarithm, kind="stable")
    parts = [part for part in np.array_split(order, bins) if part.size]
    centres = np.array([np.median(logarithm[part]) for part in parts])
    medians = np.array([np.median(residual[part]) for part in parts])
    distinct, first = np.unique(centres, return_index=True)
    if len(distinct) < 2:
        return np.full(len(residual), float(np.median(residual)))
    curve: Floats = np.interp(logarithm, distinct, medians[first])
    for end, inner in ((0, 1), (-1, -2)):
        slope = (medians[first][end] - medians[first][inner]) / (distinct[end] - distinct[inner])
        beyond = logarithm < distinct[0] if end == 0 else logarithm > distinct[-1]
        curve[beyond] = medians[first][end] + slope * (logarithm[beyond] - distinct[end])
    return np.clip(curve, residual.min(), residual.max())
