"""One possible cause with its evidence, before it is known which of them costs most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes
from rankwatch_diagnosis.straggler.graph.replay import Replay
from rankwatch_diagnosis.straggler.thresholds import Thresholds


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cause that passed its test."""

    cause: Cause
    phase: SlowPhase | None = None
    """Of `slow_rank`: the part of the ranks' work that grew."""
    ideal: Floats
    """By row of the table: seconds with the culprit at its peers' value (of communication: the transfer)."""
    first_step: int
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)
    lasts: int = 0
    """Steps of the longest episode of a rank; 0 where that means nothing."""
    last_resort: bool = False
    """Told only where no other cause is found: nothing to compare with, so its cost is an upper bound."""


class Case:
    """What every test looks at: the table, its replay, and where each row stands."""

    def __init__(self, table: OperationTable, limits: Thresholds) -> None:
        self.table = table
        self.limits = limits
        self.replay = Replay(table)
        self.seconds: Floats = self.replay.measured
        """By row; of communication the transfer."""
        self.steps: Ints
        self.ranks: Ints
        self.steps, self.step = codes(table.step)
        self.ranks, self.rank = codes(table.rank)
        self.step_seconds = self.replay.step_seconds(self.seconds)
        """Replayed, by step."""

    def replayed_ratio(self) -> float:
        """Replayed over recorded seconds of the median step. Far from 1: who waits for whom is unclear."""
        cell = self.step * len(self.ranks) + self.rank
        first = np.full(len(self.steps) * len(self.ranks), np.inf)
        last = np.full(len(first), -np.inf)
        np.minimum.at(first, cell, self.table.start_seconds)
        np.maximum.at(last, cell, self.table.start_seconds + self.table.duration_seconds)
        there = np.where(np.isfinite(first), last - first, 0.0).reshape(len(self.steps), -1)
        recorded = np.maximum(there.max(axis=1), 1e-18)
        return float(np.median(self.step_seconds / recorded))

    def sums(self, rows: NDArray[np.bool_]) -> Floats:
        """(step, rank): seconds of some rows; NaN where a rank has none of them in the step."""
        key = self.step[rows] * len(self.ranks) + self.rank[rows]
        size = len(self.steps) * len(self.ranks)
        total = np.bincount(key, weights=self.seconds[rows], minlength=size).astype(np.float64)
        total[np.bincount(key, minlength=size) == 0] = np.nan
        return total.reshape(len(self.steps), len(self.ranks))
