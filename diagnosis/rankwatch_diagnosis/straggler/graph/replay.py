"""What would have been: each step's dependencies, replayed with other durations.

A row starts when the row before it on its rank has ended (and the same pause as measured has passed); a
collective goes on when the last member has come; a receive waits for its send. Steps are replayed one by one
from a common start, all at the same time, level after level of the graph: linear in rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes
from rankwatch_diagnosis.straggler.graph.levels import levels
from rankwatch_diagnosis.straggler.graph.meetings import Meetings, meet
from rankwatch_diagnosis.straggler.graph.messages import NONE
from rankwatch_diagnosis.straggler.graph.pauses import without_waits

_CLOCK_SECONDS = 2e-6
"""Start and duration rounded to a microsecond each. Seconds since 1970 are exact to 0.24 us as it is."""


class Replay:
    """The dependencies of one table, built once; `step_seconds` replays it."""

    def __init__(self, table: OperationTable) -> None:
        end = table.start_seconds + table.duration_seconds
        # Of rows that begin together, one without duration came first.
        self.order = np.lexsort((end, table.start_seconds, table.rank, table.step))
        self.steps, self._step = codes(table.step)
        self.meetings: Meetings = meet(table, self.order)
        self._before, self._pause = _chains(table, self.order, self.meetings)
        rows, circles = levels(self._before, self.meetings)
        if circles:  # a guess about who gathers was wrong: what the table says must do
            self.meetings = meet(table, self.order, guess=False)
            self._before, self._pause = _chains(table, self.order, self.meetings)
            rows, _ = levels(self._before, self.meetings)
        self._levels = [_Level(each, *_instances(each, self.meetings.collective)) for each in rows]
        self.measured = np.where(
            table.kind == Kind.COMMUNICATION, self.meetings.transfer, table.duration_seconds
        )
        """By row: seconds without waiting for others; what `step_seconds` takes."""

    def step_seconds(self, seconds: Floats) -> Floats:
        """Duration of each step with these durations by row (of communication: the transfer)."""
        # One more element than rows, so that row -1 is a row that ended at 0.
        ends = np.zeros(len(seconds) + 1)
        before, pause, waits_for = self._before, self._pause, self.meetings.waits_for
        for rows, starts, member in self._levels:
            ready = ends[before[rows]] + pause[rows]
            np.maximum(ready, ends[waits_for[rows]], out=ready)
            if starts is not None and member is not None:
                ready = np.maximum.reduceat(ready, starts)[member]
            ends[rows] = ready + seconds[rows]
        longest = np.zeros(len(self.steps))
        np.maximum.at(longest, self._step, ends[:-1])
        return longest


class _Level(NamedTuple):
    """Rows that wait for nothing but rows of earlier levels."""

    rows: Ints
    starts: Ints | None
    """Where the instances of collectives begin among the rows; None where each row stands for itself."""
    member: Ints | None
    """By row: which instance it belongs to."""


def _chains(table: OperationTable, order: Ints, meetings: Meetings) -> tuple[Ints, Floats]:
    """By row: the row of its rank and step that ended last before it began, and the pause between the two."""
    start, rank, step = table.start_seconds[order], table.rank[order], table.step[order]
    end = start + table.duration_seconds[order]
    first = np.r_[True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1])]
    chain = np.cumsum(first) - 1
    position = np.arange(len(order))
    rounding = _CLOCK_SECONDS + 4.0 * float(np.spacing(np.abs(table.start_seconds).max()))
    before = position - 1
    if not (first[1:] | (start[1:] + rounding >= end[:-1])).all():
        before = _ended_before(start + rounding, end, chain)
    before = np.where(first, NONE, before)
    pause = np.where(before >= 0, np.maximum(start - end[before], 0.0), 0.0)
    found = np.full(len(order), NONE, dtype=np.int64)
    found[order] = np.where(before >= 0, order[before], NONE)
    pauses = np.zeros(len(order))
    pauses[order] = pause
    implicit = (meetings.waits_for >= 0) & (table.kind != Kind.COMMUNICATION)
    if implicit.any():
        # Without rows of receives the pause is the wait itself, and ranks need not share a clock.
        pauses[table.kind == Kind.COMPUTE] = 0.0
    return found, without_waits(pauses, found >= 0, table, meetings)


def _ended_before(start: Floats, end: Floats, chain: Ints) -> Ints:
    """By row, in order of start: the one of its chain that ended last before it began."""
    count = len(start)
    position = np.arange(count)
    both = np.r_[chain, chain]
    asks = np.repeat(np.array([0, 1], dtype=np.int8), count)
    merged = np.lexsort((asks, np.r_[end, start], both))
    asking = asks[merged] == 1
    ended = merged[~asking]
    last = np.empty(count, dtype=np.int64)
    last[merged[asking] - count] = np.cumsum(~asking)[asking] - 1
    before = np.where(last >= 0, ended[np.maximum(last, 0)], NONE)
    # A row without duration has ended when it begins.
    before = np.where(before >= position, position - 1, before)
    return np.where((before >= 0) & (chain[before] == chain), before, NONE)


def _instances(rows: Ints, collective: Ints) -> tuple[Ints | None, Ints | None]:
    instance = collective[rows]
    if not (instance >= 0).any():
        return None, None
    begins = np.r_[True, (instance[1:] != instance[:-1]) | (instance[1:] < 0)]
    return np.flatnonzero(begins), np.cumsum(begins) - 1


def slowdown(measured: Floats, ideal: Floats) -> float:
    """Time of all steps over their time without the culprit; never below 1."""
    total = float(ideal.sum())
    return max(1.0, float(measured.sum()) / total) if total > 0.0 else 1.0
