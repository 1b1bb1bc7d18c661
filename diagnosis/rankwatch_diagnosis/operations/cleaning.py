"""Rows that no diagnosis can use, left out and counted."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import OperationTable

_LONGEST_SECONDS = 1e9
"""A mistake of the unit, or a wrecked row."""


def clean(table: OperationTable, *, incomplete: int, broken: int) -> tuple[OperationTable, dict[str, int]]:
    """The usable rows, and by reason how many are left out; the others were left out before."""
    skipped = {
        "with the wrong number of columns": broken,
        "without operation or kind, or without whole numbers for step, rank, stage, replica or microbatch": (
            incomplete
        ),
    }
    bad = ~np.isfinite(table.duration_seconds) | ~np.isfinite(table.start_seconds)
    longer = ~bad & (table.duration_seconds > _LONGEST_SECONDS)
    for reason, rows in (
        ("with a kind other than compute, communication, data, other", table.kind < 0),
        ("with a start or duration that is no number", bad),
        ("with a negative duration", ~bad & (table.duration_seconds < 0.0)),
        ("with a duration of more than 30 years", longer),
        ("with a negative step or rank", (table.step < 0) | (table.rank < 0)),
    ):
        skipped[reason] = int(np.count_nonzero(rows))
    usable = ~bad & (table.kind >= 0) & (table.step >= 0) & (table.rank >= 0)
    usable &= np.where(bad, False, table.duration_seconds >= 0.0) & ~longer
    table = take(table, usable)
    again = _repeated(table)
    skipped["that repeat step, rank, operation and start"] = int(np.count_nonzero(again))
    table = take(table, ~again)
    stray = _strays(table)
    skipped["that put a rank into a second replica"] = int(np.count_nonzero(stray))
    return take(table, ~stray), {reason: count for reason, count in skipped.items() if count}


def take(table: OperationTable, rows: NDArray[np.bool_]) -> OperationTable:
    """Some rows of a table."""
    if rows.all():
        return table
    columns = {
        field.name: getattr(table, field.name)[rows]
        for field in fields(table)
        if isinstance(getattr(table, field.name), np.ndarray)
    }
    return replace(table, **columns)


def _repeated(table: OperationTable) -> NDArray[np.bool_]:
    """Rows that an earlier one has already told."""
    order = np.lexsort((table.start_seconds, table.operation, table.rank, table.step))
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in (table.step, table.rank, table.operation, table.start_seconds):
        same &= column[order[1:]] == column[order[:-1]]
    repeated = np.zeros(len(order), dtype=np.bool_)
    repeated[order[1:][same]] = True
    return repeated


def _strays(table: OperationTable) -> NDArray[np.bool_]:
    """Rows of a rank outside the replica that it was first seen in: two processes told the same rank."""
    _, first, inverse = np.unique(table.rank, return_index=True, return_inverse=True)
    strays: NDArray[np.bool_] = table.replica != table.replica[first][inverse]
    return strays
