"""Time of a rank that has no row: between two operations it does something that nobody recorded.

A pause that is longer than the usual one before this operation on this stage belongs to the rank that makes
it. Where such pauses are worth a part of the step they become rows of other work.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Groups
from rankwatch_diagnosis.operations.table import Kind, OperationTable

STALL = "pause without a row"
"""Name of the operation."""
_USUAL = 0.25
"""Quantile of the pauses before an operation that counts as usual: one of two ranks may always stall."""
_LEAST_SHARE = 0.005
"""Of the step: what a rank pauses in it beyond the usual. Launches and timers make less of it."""


def reveal_stalls(table: OperationTable, pauses: Floats) -> OperationTable:
    """The table with a row for each long pause; `pauses` are seconds by row, without waits for others."""
    if table.stage.min() != table.stage.max() and not (table.sends.any() and table.receives.any()):
        return table  # a pause may be a message that has no row
    kind = Groups.by(table.stage, table.operation)
    usual = np.maximum(kind.low_quantile(pauses, _USUAL)[kind.number], 0.0)
    excess = np.maximum(pauses - usual, 0.0)
    cell = table.cells.groups
    stalled = cell.sum(excess) >= _LEAST_SHARE * max(table.median_span_seconds(), 1e-12)
    rows = np.flatnonzero(stalled[cell.number] & (excess > 0.0))
    if rows.size == 0:
        return table
    count = len(rows)
    added = replace(
        table.take(rows),
        operation=np.full(count, len(table.operations), dtype=np.int32),
        kind=np.full(count, Kind.OTHER, dtype=np.int8),
        start_seconds=table.start_seconds[rows] - excess[rows],
        duration_seconds=excess[rows],
        work=np.full(count, np.nan),
        operations=(*table.operations, STALL),
    )
    return table.followed_by(added)
