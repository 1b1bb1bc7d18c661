"""The table under diagnosis with its replay, and the candidates that the tests of causes return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.difficulty import Difficulty, separate
from rankwatch_diagnosis.straggler.graph.chains import chain
from rankwatch_diagnosis.straggler.graph.clocks import align_clocks
from rankwatch_diagnosis.straggler.graph.collectives import match_communication
from rankwatch_diagnosis.straggler.graph.replay import Replay
from rankwatch_diagnosis.straggler.graph.unrecorded import reveal_stalls, reveal_waits
from rankwatch_diagnosis.straggler.thresholds import Thresholds
from rankwatch_diagnosis.straggler.visits import Visits, measure_visits


class Ideal(NamedTuple):
    """What a cause changes, and how long it takes without it: few rows, so that many causes fit in memory."""

    rows: Ints
    """Of the table."""
    seconds: Floats
    """By those rows (of communication: the transfer)."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cause that passed its test, before it is known which of them costs most.

    Each slow rank is a candidate of its own; the engine puts those together that belong together.
    """

    cause: Cause
    phase: SlowPhase | None = None
    """Of `slow_rank`: the part of the ranks' work that grew."""
    ideal: Ideal
    """Without the cause."""
    first_step: int
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    active: Bools | None = None
    """By step: it is at work; None for the steps in which it changes a row, from `first_step` on."""
    certain: bool = True
    """False if it is suspected only; what is `inconclusive` or a `last_resort` always is."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    noise_to_size: float = 0.0
    """Noise of a single step over the excess, which decides how exactly the steps and the size are known."""
    healthy_spread: float = 0.0
    """Standard deviation of the lasting differences between healthy ranks, as far as they are compared."""
    lasts: int = 0
    """Steps of the longest episode of a rank; 0 where that means nothing."""
    last_resort: bool = False
    """Reported only where no other cause is found: with nothing to compare, the cost is an upper bound."""
    slowdown: float = math.nan
    """Factor that it alone costs, once that is known: step time over the step time without it."""

    @property
    def proved(self) -> bool:
        """False if the cause is suspected only."""
        return self.certain and not self.last_resort and self.cause is not Cause.INCONCLUSIVE

    @property
    def is_slow_compute(self) -> bool:
        """True for ranks that compute slowly, if their cost is known."""
        return self.phase is SlowPhase.COMPUTE and math.isfinite(self.slowdown)


class Case:
    """What every test looks at: the table, its replay, and the place of each row.

    The table is not the one given: its ranks share a clock, and waits and stalls that had no row have one.
    """

    def __init__(self, table: OperationTable, limits: Thresholds) -> None:
        # One clock, and a row for each wait.
        given, matched = table, match_communication(table)
        aligned = align_clocks(table, matched)
        table = aligned.table if table.waits_known else reveal_waits(aligned, table.order, chain(table)[0])
        self.replay = Replay(table, matched if table is given else None)
        self.table = reveal_stalls(table, self.replay.pauses)
        if self.table is not table:
            self.replay = Replay(self.table)
        table = self.table
        self.limits = limits
        self.seconds: Floats = self.replay.measured
        """By row; of communication the transfer."""
        self.step, self.steps, self.rank, self.ranks, _ = table.cells
        self.step_seconds = self.replay.step_seconds(self.seconds)
        """Replayed, by step."""

    @cached_property
    def visits(self) -> Visits | None:
        """Its compute; None where it has none. Raises SparseTableError."""
        return measure_visits(self.table, least_steps=self.limits.steps)

    @cached_property
    def difficulty(self) -> Difficulty | None:
        """What of the compute belongs to microbatches, and what to ranks; None where there is no compute."""
        return None if self.visits is None else separate(self.visits)

    def ideal(self, seconds: Floats) -> Ideal:
        """Return the rows whose seconds (given for all rows) a cause changes."""
        rows = np.flatnonzero(seconds != self.seconds)
        return Ideal(rows, seconds[rows])

    def seconds_without(self, candidate: Candidate) -> Floats:
        """Return by step its replayed seconds without the cause."""
        seconds = self.seconds.copy()
        seconds[candidate.ideal.rows] = candidate.ideal.seconds
        return self.replay.step_seconds(seconds)

    def own_seconds(self, candidate: Candidate) -> tuple[float, float]:
        """Sum what the cause makes longer: seconds as they are, and without the cause."""
        rows, ideal = candidate.ideal
        return float(self.seconds[rows].sum()), float(ideal.sum())

    def active(self, candidate: Candidate) -> Bools:
        """Say by step whether the candidate is at work."""
        if candidate.active is not None:
            return candidate.active
        changed: Bools = np.bincount(self.step[candidate.ideal.rows], minlength=len(self.steps)) > 0
        return changed & (self.steps >= candidate.first_step)

    def replayed_ratio(self) -> float:
        """Return replayed over recorded seconds of the median step.

        Far from 1: who waits for whom is unclear.
        """
        first, last = self.table.spans()
        recorded = np.maximum(np.where(np.isfinite(first), last - first, 0.0).max(axis=1), 1e-18)
        return float(np.median(self.step_seconds / recorded))

    def sums(self, rows: Bools) -> Floats:
        """Return by (step, rank) the seconds of some rows; NaN where a rank has none of them in the step."""
        index = np.flatnonzero(rows)
        groups = self.table.cells.groups
        cells = Groups(groups.number[index], groups.count)
        total = cells.sum(self.seconds[index])
        total[cells.size() == 0] = np.nan
        return total.reshape(self.table.cells.shape)

    @cached_property
    def stage_of_rank(self) -> Ints:
        """By rank: the stage of most of its rows."""
        return Groups(self.rank, len(self.ranks)).whole_median(self.table.stage)

    @cached_property
    def replica_of_rank(self) -> Ints:
        """By rank: the replica of most of its rows."""
        return Groups(self.rank, len(self.ranks)).whole_median(self.table.replica)
