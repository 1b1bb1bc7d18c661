"""Small jobs as tables of operations, from a plain loop that shares nothing with engine or simulator.

The same table can be written as other recorders would: fewer columns, other clocks, gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable

Floats = NDArray[np.float64]


@dataclass(kw_only=True)
class SmallJob:
    """A job of dp replicas x pp stages; every factor can be changed before `table` is called.

    All forwards of a step, then all backwards (GPipe); gradients are reduced over the replicas of a stage.
    """

    dp: int = 8
    pp: int = 1
    microbatches: int = 4
    steps: int = 24
    noise: float = 0.03
    seed: int = 0
    transfer_seconds: float = 0.004
    data_seconds: float = 0.002
    with_messages: bool = True
    """Rows for sends and receives; else only compute, loading and reductions."""
    compute: Floats = field(init=False)
    """(step, replica, stage, microbatch): factor on compute."""
    transfer: Floats = field(init=False)
    """(step, stage): factor on the reduction."""
    loading: Floats = field(init=False)
    """(step, replica, stage)"""
    work: Floats | None = None
    """(step, replica, microbatch)"""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.compute = np.ones((self.steps, self.dp, self.pp, self.microbatches))
        self.transfer = np.ones((self.steps, self.pp))
        self.loading = np.ones((self.steps, self.dp, self.pp))

    def rank(self, replica: int, stage: int) -> int:
        return replica * self.pp + stage

    def slow_rank(self, rank: int, factor: float, *, first: int = 0, end: int | None = None) -> SmallJob:
        self.compute[first:end, rank // self.pp, rank % self.pp] *= factor
        return self

    def uneven(self, sigma: float) -> SmallJob:
        """Microbatches of unequal size, each the same on all stages."""
        size = (self.steps, self.dp, 1, self.microbatches)
        self.compute *= np.exp(sigma * self.random.standard_normal(size))
        return self

    def table(self) -> OperationTable:
        rows: list[tuple[Any, ...]] = []
        clock = 0.0
        for step in range(self.steps):
            clock = self._step(step, clock, rows)
        return as_table(rows)

    def _step(self, step: int, clock: float, rows: list[tuple[Any, ...]]) -> float:
        free = np.full((self.dp, self.pp), clock)
        for replica in range(self.dp):
            for stage in range(self.pp):
                seconds = self._spread(self.data_seconds * self.loading[step, replica, stage], 0.1)
                self._row(rows, step, replica, stage, "load", Kind.DATA_LOADING, free, seconds)
            self._passes(step, replica, free, rows)
        for stage in range(self.pp):
            last = free[:, stage].max()
            end = last + self._spread(self.transfer_seconds * self.transfer[step, stage], 0.05)
            for replica in range(self.dp):
                wait = end - free[replica, stage]
                kind = Kind.COMMUNICATION
                self._row(rows, step, replica, stage, "all_reduce", kind, free, wait, group=f"dp_{stage}")
        return float(free.max())

    def _passes(self, step: int, replica: int, free: Floats, rows: list[tuple[Any, ...]]) -> None:
        for name, base, stages in (
            ("forward", 0.01, range(self.pp)),
            ("backward", 0.02, reversed(range(self.pp))),
        ):
            arrived = np.zeros(self.microbatches)
            for position, stage in enumerate(stages):
                for batch in range(self.microbatches):
                    wait = max(0.0, float(arrived[batch] - free[replica, stage]))
                    cell = (rows, step, replica, stage)
                    if position and self.with_messages:
                        self._row(*cell, "recv", Kind.COMMUNICATION, free, wait, batch)
                    else:
                        free[replica, stage] += wait
                    factor = base * self.compute[step, replica, stage, batch]
                    work = np.nan if self.work is None else float(self.work[step, replica, batch])
                    seconds = self._spread(factor, self.noise)
                    self._row(*cell, name, Kind.COMPUTE, free, seconds, batch, work=work)
                    if position < self.pp - 1 and self.with_messages:
                        self._row(*cell, "send", Kind.COMMUNICATION, free, 0.0002, batch)
                    arrived[batch] = free[replica, stage]

    def _spread(self, seconds: float, sigma: float) -> float:
        return float(seconds * np.exp(sigma * self.random.standard_normal()))

    def _row(
        self,
        rows: list[tuple[Any, ...]],
        step: int,
        replica: int,
        stage: int,
        name: str,
        kind: Kind,
        free: Floats,
        seconds: float,
        batch: int = 0,
        *,
        group: str = "",
        work: float = np.nan,
    ) -> None:
        start = float(free[replica, stage])
        rank = self.rank(replica, stage)
        rows.append((step, rank, name, kind, start, seconds, stage, replica, batch, group, work))
        free[replica, stage] += seconds


def last_end(table: OperationTable) -> float:
    """Seconds at which the last row ends."""
    return float((table.start_seconds + table.duration_seconds).max())


def as_table(rows: Sequence[tuple[Any, ...]]) -> OperationTable:
    """Rows of (step, rank, operation, kind, start, duration, stage, replica, microbatch, group, work)."""
    columns = list(zip(*rows, strict=True))
    operations, operation = np.unique(np.array(columns[2]), return_inverse=True)
    groups = ["", *sorted(set(columns[9]) - {""})]
    return OperationTable(
        step=np.array(columns[0], dtype=np.int64),
        rank=np.array(columns[1], dtype=np.int64),
        operation=operation.astype(np.int32),
        kind=np.array(columns[3], dtype=np.int8),
        start_seconds=np.array(columns[4], dtype=np.float64),
        duration_seconds=np.array(columns[5], dtype=np.float64),
        stage=np.array(columns[6], dtype=np.int32),
        replica=np.array(columns[7], dtype=np.int32),
        microbatch=np.array(columns[8], dtype=np.int32),
        group=np.array([groups.index(each) for each in columns[9]], dtype=np.int32),
        work=np.array(columns[10], dtype=np.float64),
        operations=tuple(str(each) for each in operations),
        groups=tuple(groups),
    )


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
