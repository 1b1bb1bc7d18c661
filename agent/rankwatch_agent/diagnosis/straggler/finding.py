"""One possible cause with its evidence, before it is known which of them costs most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankwatch_agent.diagnosis.operations.table import OperationTable
from rankwatch_agent.diagnosis.straggler.arrays import Floats, Ints, codes
from rankwatch_agent.diagnosis.straggler.replay import Replay
from rankwatch_agent.diagnosis.straggler.thresholds import Thresholds
from rankwatch_agent.diagnosis.straggler.verdict import Cause


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cause that passed its test."""

    cause: Cause
    ideal: Floats
    """By row of the table: seconds with the culprit at its peers' value (of communication: the transfer)."""
    first_step: int
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)
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

    def sums(self, rows: NDArray[np.bool_]) -> Floats:
        """(step, rank): seconds of some rows; NaN where a rank has none of them in the step."""
        key = self.step[rows] * len(self.ranks) + self.rank[rows]
        size = len(self.steps) * len(self.ranks)
        total = np.bincount(key, weights=self.seconds[rows], minlength=size).astype(np.float64)
        total[np.bincount(key, minlength=size) == 0] = np.nan
        return total.reshape(len(self.steps), len(self.ranks))
