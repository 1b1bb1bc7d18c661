"""The table under diagnosis with its replay, and the candidates that the tests of causes return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.graph.replay import Replay
from rankwatch_diagnosis.straggler.group_by import (
    Bools,
    Floats,
    Groups,
    Ints,
    factorize,
    grid,
    group_max,
    group_median,
    group_min,
    group_size,
    group_sum,
)
from rankwatch_diagnosis.straggler.thresholds import Thresholds


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cause that passed its test, before it is known which of them costs most."""

    cause: Cause
    phase: SlowPhase | None = None
    """Of `slow_rank`: the part of the ranks' work that grew."""
    ideal: Floats
    """By row of the table: seconds without the cause (of communication: the transfer)."""
    first_step: int
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)
    lasts: int = 0
    """Steps of the longest episode of a rank; 0 where that means nothing."""
    last_resort: bool = False
    """Reported only where no other cause is found: with nothing to compare, the cost is an upper bound."""


class Case:
    """What every test looks at: the table, its replay, and the place of each row."""

    def __init__(self, table: OperationTable, limits: Thresholds) -> None:
        self.table = table
        self.limits = limits
        self.replay = Replay(table)
        self.seconds: Floats = self.replay.measured
        """By row; of communication the transfer."""
        self.steps: Ints
        self.ranks: Ints
        self.step, self.steps = factorize(table.step)
        self.rank, self.ranks = factorize(table.rank)
        self.step_seconds = self.replay.step_seconds(self.seconds)
        """Replayed, by step."""

    def replayed_ratio(self) -> float:
        """Replayed over recorded seconds of the median step. Far from 1: who waits for whom is unclear."""
        cells = self._step_rank(np.arange(len(self.table)))
        first = group_min(self.table.start_seconds, cells)
        last = group_max(self.table.start_seconds + self.table.duration_seconds, cells)
        there = np.where(np.isfinite(first), last - first, 0.0).reshape(len(self.steps), -1)
        recorded = np.maximum(there.max(axis=1), 1e-18)
        return float(np.median(self.step_seconds / recorded))

    def sums(self, rows: Bools) -> Floats:
        """(step, rank): seconds of some rows; NaN where a rank has none of them in the step."""
        index = np.flatnonzero(rows)
        cells = self._step_rank(index)
        total = group_sum(self.seconds[index], cells)
        total[group_size(cells) == 0] = np.nan
        return total.reshape(len(self.steps), len(self.ranks))

    def stages_of_ranks(self) -> Ints:
        """By rank: the stage of most of its rows."""
        of_rank = Groups(self.rank, len(self.ranks))
        return np.rint(group_median(self.table.stage.astype(np.float64), of_rank)).astype(np.int64)

    def _step_rank(self, rows: Ints) -> Groups:
        return grid((self.step[rows], len(self.steps)), (self.rank[rows], len(self.ranks)))
