"""The same job told in another style: what other recorders write, and what they leave out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable


def without(table: OperationTable, *columns: str) -> OperationTable:
    """As a file without these optional columns gives it."""
    return replace(table, **{name: np.zeros_like(getattr(table, name)) for name in columns})


def transfers_only(table: OperationTable) -> OperationTable:
    """Collectives begin when the last member has come, so the wait is a pause before them."""
    duration = table.duration_seconds.copy()
    for rows in _instances(table):
        duration[rows] = duration[rows].min()
    end = table.start_seconds + table.duration_seconds
    return replace(table, start_seconds=end - duration, duration_seconds=duration)


def on_wall_clocks(table: OperationTable) -> OperationTable:
    """Seconds since 1970, by hosts that differ by seconds, in whole microseconds."""
    offset = 1.7e9 + np.random.default_rng(1).uniform(-5.0, 5.0, int(table.rank.max()) + 1)
    start, duration = table.start_seconds + offset[table.rank], table.duration_seconds
    return replace(table, start_seconds=start.round(6), duration_seconds=duration.round(6))


def with_gaps(table: OperationTable, share: float) -> OperationTable:
    """Some ranks left out of some steps."""
    size = (int(table.step.max()) + 1, int(table.rank.max()) + 1)
    gone = np.random.default_rng(2).random(size) < share
    return table.take(~gone[table.step, table.rank])


def _instances(table: OperationTable) -> list[np.ndarray]:
    reductions = np.flatnonzero((table.kind == Kind.COMMUNICATION) & (table.group > 0))
    key = table.step[reductions] * 1_000 + table.group[reductions]
    return [reductions[key == each] for each in np.unique(key)]
