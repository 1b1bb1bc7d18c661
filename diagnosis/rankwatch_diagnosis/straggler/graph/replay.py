"""What-if: the steps of a run, replayed along their dependencies with other durations.

A row starts when the row before it on its rank has ended and the recorded pause has passed; a collective goes
on when its last member has come; a receive waits for its send:

    end(row) = max(end(row before) + pause, end of the row or members that it waits for) + seconds(row)

Steps are replayed from a common start, all at once, level after level of the graph: linear in rows. The graph
is inferred from a table that somebody recorded. The simulator's timeline is built from the program of a job
instead, so that a wrong assumption here cannot hide there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.collectives import Communication, match_communication
from rankwatch_diagnosis.straggler.graph.pipeline import NONE, point_to_point
from rankwatch_diagnosis.straggler.group_by import (
    Bools,
    Floats,
    Groups,
    Ints,
    factorize,
    group_max,
    group_min,
)

_CLOCK_SECONDS = 2e-6
"""Start and duration rounded to a microsecond each. Seconds since 1970 are exact to 0.24 us as it is."""


class Replay:
    """The dependencies of one table, built once; `step_seconds` replays it."""

    def __init__(self, table: OperationTable) -> None:
        end = table.start_seconds + table.duration_seconds
        # Of rows that begin together, one without duration came first.
        order = np.lexsort((end, table.start_seconds, table.rank, table.step))
        step, steps = factorize(table.step)
        self._steps = Groups(step, len(steps))
        self.communication = match_communication(table, order)
        self._before, self._pause = _chains(table, order, self.communication)
        rows, cyclic = _levels(self._before, self.communication)
        if cyclic:  # members were inferred wrongly: fall back on the groups of the table
            self.communication = match_communication(table, order, infer_members=False)
            self._before, self._pause = _chains(table, order, self.communication)
            rows, _ = _levels(self._before, self.communication)
        self._levels = [_Level(each, *_instances(each, self.communication.collective)) for each in rows]
        self.measured = np.where(
            table.kind == Kind.COMMUNICATION, self.communication.transfer, table.duration_seconds
        )
        """By row: seconds without waiting for others; what `step_seconds` takes."""

    def step_seconds(self, seconds: Floats) -> Floats:
        """By step: its duration with these seconds by row (of communication: of the transfer)."""
        # One more element than rows, so that row -1 is a row that ended at 0.
        ends = np.zeros(len(seconds) + 1)
        before, pause, waits_for = self._before, self._pause, self.communication.waits_for
        for rows, starts, member in self._levels:
            ready = ends[before[rows]] + pause[rows]
            np.maximum(ready, ends[waits_for[rows]], out=ready)
            if starts is not None and member is not None:
                ready = np.maximum.reduceat(ready, starts)[member]
            ends[rows] = ready + seconds[rows]
        return np.maximum(group_max(ends[:-1], self._steps), 0.0)


def slowdown(measured: Floats, ideal: Floats) -> float:
    """Seconds of all steps over their seconds without the cause; never below 1."""
    total = float(ideal.sum())
    return max(1.0, float(measured.sum()) / total) if total > 0.0 else 1.0


class _Level(NamedTuple):
    """Rows that wait for nothing but rows of earlier levels."""

    rows: Ints
    starts: Ints | None
    """Where the instances of collectives begin among the rows; None where each row stands for itself."""
    member: Ints | None
    """By row: the instance it belongs to."""


def _instances(rows: Ints, collective: Ints) -> tuple[Ints | None, Ints | None]:
    instance = collective[rows]
    if not (instance >= 0).any():
        return None, None
    begins = np.r_[True, (instance[1:] != instance[:-1]) | (instance[1:] < 0)]
    return np.flatnonzero(begins), np.cumsum(begins) - 1


def _chains(table: OperationTable, order: Ints, communication: Communication) -> tuple[Ints, Floats]:
    """By row: the row of its rank and step that ended last before it began, and the pause between the two."""
    start, rank, step = table.start_seconds[order], table.rank[order], table.step[order]
    end = start + table.duration_seconds[order]
    first = np.r_[True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1])]
    rounding = _CLOCK_SECONDS + 4.0 * float(np.spacing(np.abs(table.start_seconds).max()))
    before = np.arange(len(order)) - 1
    if not (first[1:] | (start[1:] + rounding >= end[:-1])).all():
        before = _ended_before(start + rounding, end, np.cumsum(first) - 1)
    before = np.where(first, NONE, before)
    pause = np.where(before >= 0, np.maximum(start - end[before], 0.0), 0.0)
    found = np.full(len(order), NONE, dtype=np.int64)
    found[order] = np.where(before >= 0, order[before], NONE)
    pauses = np.zeros(len(order))
    pauses[order] = pause
    implicit = (communication.waits_for >= 0) & (table.kind != Kind.COMMUNICATION)
    if implicit.any():
        # Without rows of receives the pause is the wait itself, and ranks need not share a clock.
        pauses[table.kind == Kind.COMPUTE] = 0.0
    return found, _own_pauses(pauses, found >= 0, table, communication)


def _ended_before(start: Floats, end: Floats, chain: Ints) -> Ints:
    """By row, in order of start: the row of its chain that ended last before it began."""
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


def _own_pauses(
    pauses: Floats, follows: Bools, table: OperationTable, communication: Communication
) -> Floats:
    """Seconds of pause before each row without waits for other ranks; `follows`: there is a row before it.

    Most recorders begin a collective when the rank comes to it, so its duration holds the wait. Some begin it
    when the last member has come: then members take equally long, and the wait lies in the pause before.
    """
    members = np.flatnonzero((communication.collective >= 0) & follows)
    instances = Groups(communication.collective[members], communication.collectives)
    in_pauses = _spread(pauses[members], instances)
    if in_pauses <= _spread(table.duration_seconds[members], instances):
        return pauses
    own = pauses.copy()
    # The last arriver does not wait.
    own[members] = group_min(pauses[members], instances)[instances.number]
    _, receives = point_to_point(table)
    own[receives & (communication.waits_for != NONE)] = 0.0
    return own


def _spread(seconds: Floats, instances: Groups) -> float:
    """Longest less shortest of the members, over all instances."""
    low, high = group_min(seconds, instances), group_max(seconds, instances)
    seen = np.isfinite(low)
    return float(np.sum(high[seen] - low[seen]))


def _levels(before: Ints, communication: Communication) -> tuple[list[Ints], bool]:
    """Rows by level of the graph, members of a collective side by side; and whether the graph has a cycle.

    This is Kahn's algorithm over whole frontiers. Rows in a cycle come last, in one level, and wait for
    nothing that comes later. Cycles stem from wrong guesses, as clocks can cause them.
    """
    node, count = _nodes(communication)
    source, target = _edges(before, communication.waits_for, node)
    missing = np.bincount(target, minlength=count)
    targets = target[np.argsort(source, kind="stable")]
    ends = np.cumsum(np.bincount(source, minlength=count))
    starts = np.r_[0, ends[:-1]]
    level = np.full(count, -1, dtype=np.int64)
    frontier = np.flatnonzero(missing == 0)
    number = 0
    while frontier.size:
        level[frontier] = number
        number += 1
        reached = targets[_ranges(starts[frontier], ends[frontier])]
        np.subtract.at(missing, reached, 1)
        frontier = np.unique(reached[missing[reached] == 0])
    cyclic = bool((level < 0).any())
    level[level < 0] = number
    of_row = level[node]
    order = np.lexsort((node, of_row))
    parts = np.split(order, np.flatnonzero(np.diff(of_row[order])) + 1)
    return [part for part in parts if part.size], cyclic


def _nodes(communication: Communication) -> tuple[Ints, int]:
    """By row its node: a collective is one node, every other row is one by itself."""
    alone = communication.collective < 0
    node = communication.collective.copy()
    node[alone] = communication.collectives + np.arange(np.count_nonzero(alone))
    return node, communication.collectives + int(np.count_nonzero(alone))


def _edges(before: Ints, waits_for: Ints, node: Ints) -> tuple[Ints, Ints]:
    """Source and target nodes: each row comes after the row before it and the row that it waits for."""
    parts = [(each[rows], rows) for each in (before, waits_for) for rows in (np.flatnonzero(each >= 0),)]
    source = np.concatenate([node[given] for given, _ in parts])
    target = np.concatenate([node[rows] for _, rows in parts])
    return source, target


def _ranges(starts: Ints, ends: Ints) -> Ints:
    """All indices of several ranges, one after the other."""
    sizes = ends - starts
    offsets = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    indices: Ints = np.arange(int(sizes.sum())) + offsets
    return indices
