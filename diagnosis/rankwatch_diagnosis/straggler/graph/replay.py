"""What-if: the steps of a run, replayed along their dependencies with other durations.

A row arrives when the row before it on its rank has ended and the recorded pause has passed. A collective
goes on when its last member has arrived, a message when both of its ends have:

    arrival(row) = end(row before) + pause
    end(row) = max(arrivals of all that meet in it, end of the row that it waits for) + seconds(row)

A message that a rank enqueues before it waits for it arrives with the enqueue, and the row ends no earlier
than the rank comes to it.

Steps are replayed all at once, level after level of the graph: linear in rows. Ranks begin a step together,
unless the table shows that each goes on to its next step by itself: then it begins a step when it has ended
the one before, as an earlier replay shows.

The graph is inferred from a table that somebody recorded. The simulator's timeline is built from the program
of a job instead, so that a wrong assumption here cannot hide there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints
from rankwatch_diagnosis.operations.table import NO_ROW, Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.chains import ROUNDING_SECONDS, chain
from rankwatch_diagnosis.straggler.graph.collectives import Communication, match_communication

_ROUNDS = 2
"""Replays of the steps after one another; a rank that ends a step early waits in the next one for others."""
_MOST_UNEXPLAINED = 0.5
"""Of the time by which ranks begin steps apart, where they go on as they ended the step before."""


class Replay:
    """The dependencies of one table, built once; `step_seconds` replays it."""

    def __init__(self, table: OperationTable, communication: Communication | None = None) -> None:
        """Lay out the dependencies of a table; communication: of the table, where it is known."""
        self.before, recorded = chain(table)
        """By row: the row of its rank that it comes after, or -1."""
        self.enqueued_after = _enqueued_after(table, self.before)
        """By row: the row of its rank after which it was enqueued; `before`, but of a message that the rank
        began to wait for later."""
        self._cells = table.cells
        self._steps = Groups(table.cells.step, len(table.cells.steps))
        self.communication = communication or match_communication(table)
        rows, cyclic = _levels(self.before, self.enqueued_after, self.communication)
        if cyclic:  # members were inferred wrongly: fall back on the groups of the table
            self.communication = match_communication(table, infer_members=False)
            rows, _ = _levels(self.before, self.enqueued_after, self.communication)
        self.pauses = _pauses(recorded, self.before >= 0, table, self.communication)
        """By row: seconds between the row before it and its arrival, without waits for others; a
        little less than 0 where clocks let the two overlap."""
        self._layout = _Layout.of(rows, self.before, self.enqueued_after, self.communication)
        self.measured = np.where(
            table.kind == Kind.COMMUNICATION, self.communication.transfer, table.duration_seconds
        )
        """By row: seconds without waiting for others; what `step_seconds` takes."""
        # Whether ranks begin their steps apart, as they have ended those before.
        begun = self._after_the_first(table.cells.groups.min(table.start_seconds))
        unexplained = np.abs(begun - self._delays(self.row_ends(self.measured))).sum()
        self._staggered = bool(unexplained < _MOST_UNEXPLAINED * begun.sum())

    def step_seconds(self, seconds: Floats, pauses: Floats | None = None) -> Floats:
        """Return by step its duration with these seconds by row (of communication: of the transfer).

        `pauses` are seconds by row, too; without them the recorded ones.
        """
        ends = self.row_ends(seconds, pauses)
        took: Floats = np.maximum(self._steps.max(ends), 0.0)
        for _ in range(_ROUNDS if self._staggered else 0):
            delays = self._delays(ends)
            ends = self.row_ends(seconds, pauses, delays)
            took = np.maximum(self._steps.max(ends) - delays.max(axis=1), 0.0)
        return took

    def _delays(self, ends: Floats) -> Floats:
        """Return by (step, rank) how much later than the first rank it begins, as it ended the step before.

        What comes before the first step is taken to be like the last one.
        """
        return np.roll(self._after_the_first(self._cells.groups.max(ends)), 1, axis=0)

    def _after_the_first(self, moments: Floats) -> Floats:
        """Return by (step, rank) the moment less that of the first rank; 0 for ranks that are not there."""
        there = np.where(np.isfinite(moments), moments, np.nan).reshape(self._cells.shape)
        after: Floats = np.nan_to_num(there - np.nanmin(there, axis=1, keepdims=True))
        return after

    def row_ends(self, seconds: Floats, pauses: Floats | None = None, delays: Floats | None = None) -> Floats:
        """Return by row when it ends, in seconds since its step began.

        delays: (step, rank) by how much the rank begins the step later; None: all begin at once.
        """
        pause = self.pauses if pauses is None else pauses
        if delays is not None:
            pause = np.where(self.before < 0, pause + delays.ravel()[self._cells.groups.number], pause)
        return self._layout.ends(seconds, pause)


def slowdown(measured: Floats, ideal: Floats) -> float:
    """Return the seconds of all steps over their seconds without the cause; never below 1."""
    total = float(ideal.sum())
    return max(1.0, float(measured.sum()) / total) if total > 0.0 else 1.0


class _Level(NamedTuple):
    """Rows that wait for nothing but rows of earlier levels."""

    rows: slice
    """Their places."""
    starts: Ints | None
    """Places in the rows where instances of collectives begin; None where each row stands for itself."""
    member: Ints | None
    """By row: the instance it belongs to."""
    met: bool
    """Some of the rows wait for the arrival of a partner."""
    ahead: bool
    """Some of them, or of their partners, were enqueued before the wait for them."""


class _Layout(NamedTuple):
    """The graph level after level, so that what a level needs lies side by side. Rows have places in it; the
    place behind all of them stands for no row, and ended at 0.
    """

    order: Ints
    """By place: the row."""
    place: Ints
    """By row: its place."""
    before: Ints
    came: Ints
    waits_for: Ints
    meets: Ints
    """By place, as of the replay: places."""
    levels: tuple[_Level, ...]

    @classmethod
    def of(cls, rows: Sequence[Ints], before: Ints, came: Ints, communication: Communication) -> _Layout:
        """Lay out all rows, level by level; rows: those of each level."""
        order = np.concatenate([*rows, [len(before)]]).astype(np.int64)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))

        def placed(column: Ints) -> Ints:
            found: Ints = place[np.append(column, NO_ROW)[order]]
            return found

        columns = placed(before), placed(came), placed(communication.waits_for), placed(communication.meets)
        meets = columns[-1]
        ahead = columns[0] != columns[1]
        ahead |= ahead[meets]
        ends = np.cumsum([len(each) for each in rows]).tolist()
        levels = [
            _Level(
                slice(end - len(each), end),
                *_instances(each, communication.together),
                bool((meets[end - len(each) : end] < len(before)).any()),
                bool(ahead[end - len(each) : end].any()),
            )
            for each, end in zip(rows, ends, strict=True)
        ]
        return cls(order, place, *columns, tuple(levels))

    def ends(self, seconds: Floats, pauses: Floats) -> Floats:
        """Return by row when it ends; seconds and pauses are by row, too."""
        seconds, pause = (np.append(each, 0.0)[self.order] for each in (seconds, pauses))
        ends = np.zeros(len(self.order))
        for rows, starts, member, met, ahead in self.levels:
            ready = ends[self.before[rows]] + pause[rows]
            travels = ready
            if ahead:
                same = self.came[rows] == self.before[rows]
                travels = np.where(same, ready, ends[self.came[rows]])
            if met:
                partner = self.meets[rows]
                paused = pause[partner]
                if ahead:
                    paused = np.where(self.came[partner] == self.before[partner], paused, 0.0)
                travels = np.maximum(travels, ends[self.came[partner]] + paused)
            travels = np.maximum(travels, ends[self.waits_for[rows]])
            if starts is not None and member is not None:
                travels = np.maximum.reduceat(travels, starts)[member]
            arrived = travels + seconds[rows]
            ends[rows] = np.maximum(ready, arrived) if ahead else arrived
        found: Floats = ends[self.place[:-1]]
        return found


def _instances(rows: Ints, together: Ints) -> tuple[Ints | None, Ints | None]:
    instance = together[rows]
    if not (instance >= 0).any():
        return None, None
    begins = np.r_[True, (instance[1:] != instance[:-1]) | (instance[1:] < 0)]
    return np.flatnonzero(begins), np.cumsum(begins) - 1


def _pauses(pauses: Floats, follows: Bools, table: OperationTable, communication: Communication) -> Floats:
    """Return by row the pause before it in seconds, without waits for others; `follows`: it has a row before.

    Most recorders begin a collective when the rank comes to it, so its duration holds the wait. Some begin it
    when the last member has come: then members take equally long, and the wait lies in the pause before.
    """
    implicit = (communication.waits_for >= 0) & (table.kind != Kind.COMMUNICATION)
    if implicit.any():
        # Without rows of receives the pause is the wait itself, and ranks need not share a clock.
        pauses = np.where(table.kind == Kind.COMPUTE, 0.0, pauses)
    members = np.flatnonzero((communication.collective >= 0) & follows)
    instances = Groups(communication.collective[members], communication.collectives)
    in_pauses = _spread(pauses[members], instances)
    if in_pauses <= _spread(table.duration_seconds[members], instances):
        return pauses
    own = pauses.copy()
    # The last arriver does not wait.
    own[members] = instances.min(pauses[members])[instances.number]
    own[table.receives & (communication.waits_for != NO_ROW)] = 0.0
    return own


def _spread(seconds: Floats, instances: Groups) -> float:
    """Sum the longest less the shortest of the members, over all instances."""
    low, high = instances.min(seconds), instances.max(seconds)
    seen = np.isfinite(low)
    return float(np.sum(high[seen] - low[seen]))


def _enqueued_after(table: OperationTable, before: Ints) -> Ints:
    """Find by row the last row of its rank that had ended when it was enqueued, -1 for none."""
    found = before.copy()
    if table.ahead_seconds is None:
        return found
    end = table.end_seconds
    moment = table.start_seconds - table.ahead_seconds + ROUNDING_SECONDS
    rows = np.flatnonzero(table.ahead_seconds > 0.0)
    while rows.size:
        rows = rows[(found[rows] >= 0) & (end[found[rows]] > moment[rows])]
        found[rows] = before[found[rows]]
    return found


def _levels(before: Ints, came: Ints, communication: Communication) -> tuple[list[Ints], bool]:
    """Sort rows by level of the graph, members of a collective side by side; say whether it has a cycle.

    This is Kahn's algorithm over whole frontiers. Rows in a cycle come last, in one level, and wait for
    nothing that comes later. Cycles stem from wrong guesses, as clocks can cause them.
    """
    # Rows that end together are one node, every other row is one by itself.
    node, alone = communication.together.copy(), communication.together < 0
    first = int(node.max(initial=NO_ROW)) + 1
    count = first + int(np.count_nonzero(alone))
    node[alone] = np.arange(first, count)
    source, target = _edges(before, came, communication, node)
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


def _edges(before: Ints, came: Ints, communication: Communication, node: Ints) -> tuple[Ints, Ints]:
    """Return source and target nodes: each row comes after the row before it, the row that it waits for, and
    the row after which the one was enqueued that it meets.
    """
    met = np.where(communication.meets >= 0, came[communication.meets], NO_ROW)
    parts = [
        (each[rows], rows)
        for each in (before, communication.waits_for, met)
        for rows in (np.flatnonzero(each >= 0),)
    ]
    source = np.concatenate([node[given] for given, _ in parts])
    target = np.concatenate([node[rows] for _, rows in parts])
    return source, target


def _ranges(starts: Ints, ends: Ints) -> Ints:
    """Return all indices of several ranges, one after the other."""
    sizes = ends - starts
    offsets = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    indices: Ints = np.arange(int(sizes.sum())) + offsets
    return indices
