"""Writes a replay as a recorder would have written it, with the columns of the first recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable

from .replay import Replay, Seconds, Times

LOADING = "data-loading"


def record(table: OperationTable, replay: Replay, times: Times, seconds: Seconds) -> OperationTable:
    """The rows of these steps with new starts and durations.

    Communication includes the wait, rows of a batch share start and duration, and a barrier without a row
    shows as a pause, as in the first recording.
    """
    program = replay.program
    start, duration = table.start_seconds.copy(), table.duration_seconds.copy()
    for node, rows in enumerate(program.rows):
        start[rows] = times.start[node]
        duration[rows] = times.end[node] - times.start[node]
    for mark in program.marks:
        start[mark.rows] = times.end[mark.node] + mark.after_seconds
    written = replace(table, start_seconds=start, duration_seconds=duration)
    kept = written.take(np.isin(written.step, program.steps))
    return _with_loading(kept, replay, times, seconds) if seconds.loading else kept


def _with_loading(table: OperationTable, replay: Replay, times: Times, seconds: Seconds) -> OperationTable:
    """A row for each pause in which a rank loaded data."""
    program = replay.program
    rank = [program.nodes[node].rank for node in seconds.loading]
    waited = np.array(list(seconds.loading.values()))
    start = times.start[list(seconds.loading)] - waited
    steps = len(program.steps)
    columns = {
        "step": np.broadcast_to(program.steps, start.shape),
        "rank": _per_step(rank, steps),
        "operation": np.full(start.shape, len(table.operations)),
        "kind": np.full(start.shape, Kind.DATA_LOADING),
        "start_seconds": start,
        "duration_seconds": waited,
        "stage": _per_step([program.stage_of[each] for each in rank], steps),
        "replica": _per_step([program.replica_of[each] for each in rank], steps),
        "microbatch": _per_step([program.nodes[node].microbatch for node in seconds.loading], steps),
        "group": np.zeros(start.shape),
        "work": np.full(start.shape, np.nan),
    }
    both = {
        name: np.concatenate([getattr(table, name), column.ravel().astype(getattr(table, name).dtype)])
        for name, column in columns.items()
    }
    return replace(table, operations=(*table.operations, LOADING), **both)


def _per_step(values: Sequence[int], steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.repeat(np.array(values)[:, None], steps, axis=1)
