"""Time that nobody recorded as such: waits for other ranks inside a pause or a compute row, and stalls.

Whoever comes a second later to a meeting spends a second less in it, and nobody leaves before the last one
has come. A pause or a compute row of which that is true, among the ranks of a stage, of a replica or of the
job, holds a meeting: its wait becomes a row of communication, and what follows the last arrival stays.

A pause that is longer than the usual one before this operation on this stage belongs to the rank that makes
it. Where such pauses are worth a part of the step they become rows of other work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, cumcount
from rankwatch_diagnosis.operations.table import NO_ROW, Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.clocks import Aligned

HIDDEN_WAIT, STALL = "wait without a row", "pause without a row"
"""Names of the operations."""
_MOST_RUNS = 4
"""Runs of an operation in a step of a rank. What runs for each microbatch is no place for a barrier."""
_SPARSE = 64
"""An operation that fewer than one in so many ranks and steps run holds no meeting that matters."""
_LEAST_SECONDS = 1e-3
_LEAST_SHARE = 1e-3
"""Of the step: arrivals that lie closer together than this cost nothing, and clocks do not show them."""
_TOLERANCE_SHARE = 0.05
"""Part of the spread of arrivals by which somebody may seem to leave before the last has come: clocks."""
_ONE_FOR_ONE = (0.7, 1.3)
"""Seconds less in it for each second later. Measured in real jobs: 0.99 where a row hides the wait for a
global norm, and -0.3 to 0.5 of an optimizer that hides none."""
_EXPLAINED = 0.8
"""Part of the variance of the spans that the arrivals explain."""
_LEAST_SPANS = 4
"""Spans of ranks that wait; with fewer, arrivals explain them by chance."""
_MOSTLY = 0.95
"""Of the steps in which a member must be there when the last one comes."""
_UNITS = 3
"""The job, replicas and stages."""
_STAGE = 2
_NO_WORSE = 1.02
"""Fewer meetings may leave this much more unexplained."""
_USUAL = 0.25
"""Quantile of the pauses before an operation that counts as usual: one of two ranks may always stall."""
_LEAST_STALL_SHARE = 0.005
"""Of the step: what a rank pauses in it beyond the usual. Launches and timers make less of it."""


class _Spans(NamedTuple):
    """One operation, or the pause before it, of all ranks in all steps: (step, rank); NaN for none."""

    arrived: Floats
    left: Floats
    rows: Ints
    """The compute row that may hide the wait, or the row behind the pause; -1 for none."""
    inside: bool
    """The wait is inside of the row, not in the pause before it."""


class _Meeting(NamedTuple):
    """A wait of some ranks for each other."""

    unit: int
    """Unit that they have in common: the job, a replica or a stage."""
    ranks: Ints
    """Indices of ranks."""
    whole: Bools
    """By step: all of them are there, on one clock."""


def reveal_waits(aligned: Aligned, order: Ints, before: Ints) -> OperationTable:
    """Return the table with a row for each wait without one; `before`: by row, the one before on its rank."""
    table = aligned.table
    step, steps, rank, ranks, _ = table.cells
    if len(ranks) < 2:
        return table
    run = cumcount(Groups.by(table.step, table.rank, table.operation).number, order)
    # Operations that run a few times in a step, and are no messages.
    most = Groups(table.operation.astype(np.int64), len(table.operations)).max(run.astype(np.float64))
    few = most[table.operation] < _MOST_RUNS
    usable = np.flatnonzero(few & ~table.sends & ~table.receives)
    new: list[tuple[Ints, Floats, Floats, int]] = []
    shorter = table.duration_seconds.copy()
    sets = _sets(table, rank, len(ranks))
    for part in Groups.by(table.operation[usable], run[usable]).parts():
        rows = usable[part]
        if _SPARSE * len(rows) < len(steps) * len(ranks):
            continue
        at = np.full((len(steps), len(ranks)), NO_ROW, dtype=np.int64)
        at[step[rows], rank[rows]] = rows
        for spans in _spans_of(table, at, before):
            each_set = (_meeting(spans, unit, ranks, aligned) for unit, ranks in sets)
            found = _in_turn(spans, [each for each in each_set if each is not None])
            if found:
                new.extend(_waits(spans, found, shorter, len(new)))
    return _with_rows(table, new, shorter) if new else table


def _spans_of(table: OperationTable, at: Ints, before: Ints) -> Iterator[_Spans]:
    """Yield the pause before the rows, and the rows themselves where they compute."""
    there = at >= 0
    start = np.where(there, table.start_seconds[at], np.nan)
    previous = np.where(there, before[at], NO_ROW)
    ended = table.end_seconds[previous]
    yield _Spans(np.where(previous >= 0, ended, np.nan), start, at, inside=False)
    if table.kind[at[there][0]] == Kind.COMPUTE:
        yield _Spans(start, np.where(there, start + table.duration_seconds[at], np.nan), at, inside=True)


def _sets(table: OperationTable, rank: Ints, ranks: int) -> list[tuple[int, Ints]]:
    """Find ranks that may meet, by unit: the job, each replica, each stage; indices of ranks."""
    of_rank = np.zeros((_UNITS, ranks), dtype=np.int64)
    of_rank[1, rank], of_rank[2, rank] = table.replica, table.stage
    found = [(0, np.arange(ranks))]
    for unit in range(1, _UNITS):
        place = of_rank[unit]
        if place.min() != place.max():
            found.extend((unit, np.flatnonzero(place == each)) for each in np.unique(place))
    return [each for each in found if len(each[1]) > 1]


def _meeting(spans: _Spans, unit: int, ranks: Ints, aligned: Aligned) -> _Meeting | None:
    arrived, left = spans.arrived[:, ranks], spans.left[:, ranks]
    whole = np.asarray((np.isfinite(arrived) & np.isfinite(left)).all(axis=1))
    clock = aligned.clock[spans.rows[whole][:, ranks]]
    whole[whole] = (clock == clock[:, :1]).all(axis=1)
    if not whole.any():
        return None
    came, went = arrived[whole], left[whole]
    early = came.max(axis=1, keepdims=True) - came
    apart = early.max(axis=1)
    enough = np.maximum(_LEAST_SECONDS, _LEAST_SHARE * _step_seconds(spans))
    if float(np.median(apart)) < enough:
        return None
    after = went - came.max(axis=1, keepdims=True)
    tolerance = np.maximum(_TOLERANCE_SHARE * apart, _LEAST_SECONDS)[:, None]
    if float(np.mean((after >= -tolerance).all(axis=1))) < _MOSTLY:
        return None
    if not _some_leave_together(early, went - came):
        return None
    return _Meeting(unit, ranks, whole)


def _step_seconds(spans: _Spans) -> float:
    """Return a lower bound of what a step takes: from the first arrival to the last leave of the kind."""
    seen = np.isfinite(spans.left).any(axis=1) & np.isfinite(spans.arrived).any(axis=1)
    left, arrived = spans.left[seen], spans.arrived[seen]
    return float(np.median(np.nanmax(left, axis=1) - np.nanmin(arrived, axis=1)))


def _some_leave_together(early: Floats, spans: Floats) -> bool:
    """Return True if members leave when the others do, as the arrivals of all of them explain.

    Members that stay longest, since they wait for somebody else as well, are left out: one, two, four, ...
    """
    after = spans - early
    by_stay = np.argsort(np.median(after - after.min(axis=1, keepdims=True), axis=0), kind="stable")
    left_out = 0
    while left_out < len(by_stay) - 1:
        together = by_stay[: len(by_stay) - left_out]
        if _one_for_one(early[:, together], spans[:, together]):
            return True
        left_out = 2 * left_out or 1
    return False


def _one_for_one(early: Floats, spans: Floats) -> bool:
    """Return True if whoever comes a second later spends a second less, among the members of each step."""
    if early.shape[1] < 2 or early.size < _LEAST_SPANS:
        return False
    one, other = (each - each.mean(axis=1, keepdims=True) for each in (early, spans))
    variance = float(np.sum(one * one))
    if variance <= 0.0:
        return False
    slope = float(np.sum(one * other)) / variance
    rest = float(np.sum((other - slope * one) ** 2))
    share = 1.0 - rest / max(float(np.sum(other * other)), 1e-18)
    return _ONE_FOR_ONE[0] < slope < _ONE_FOR_ONE[1] and share >= _EXPLAINED


def _in_turn(spans: _Spans, meetings: list[_Meeting]) -> list[_Meeting]:
    """Return the fewest of the meetings, in the order that leaves the least time unexplained.

    Who is held in one comes late to the next. And where all wait for the job, the ranks of a stage seem to
    wait for each other.
    """
    units = sorted({each.unit for each in meetings})
    plans = [
        [each for unit in order for each in meetings if each.unit == unit]
        for count in range(1, len(units) + 1)
        for order in permutations(units, count)
    ]
    if not plans:
        return []
    members = np.unique(np.concatenate([each.ranks for each in meetings]))
    rest = [_unexplained(spans, plan, members) for plan in plans]
    limit = _NO_WORSE * min(rest)
    plan = next(plan for plan, left in zip(plans, rest, strict=True) if left <= limit)
    for each in [one for one in plan if one.unit == _STAGE]:
        without = [one for one in plan if one is not each]
        if without and _unexplained(spans, without, members) <= limit:
            plan = without
    return plan


def _unexplained(spans: _Spans, meetings: list[_Meeting], members: Ints) -> float:
    """Sum the seconds that the members stay after the last one has come; leaving too early counts as much."""
    since = spans.arrived.copy()
    for each in meetings:
        since[:, each.ranks] = _when_all_came(since, each)
    return float(np.nansum(np.abs(spans.left[:, members] - since[:, members])))


def _when_all_came(since: Floats, meeting: _Meeting) -> Floats:
    """Return by (step, rank of the meeting) when the last one comes, or itself where not all are there."""
    came = since[:, meeting.ranks]
    return np.where(meeting.whole[:, None], came.max(axis=1, keepdims=True), came)


def _waits(
    spans: _Spans, meetings: list[_Meeting], shorter: Floats, number: int
) -> Iterator[tuple[Ints, Floats, Floats, int]]:
    """Yield rows to add: the row that each is like, its start and seconds, and the number of its meeting.

    A rank may wait in several, one after the other: each begins where the one before ended.
    """
    since = spans.arrived.copy()
    for index, each in enumerate(meetings):
        begin, over = since[:, each.ranks], _when_all_came(since, each)
        if not spans.inside:  # what all do together after the last arrival is nobody's own
            leave = each.ranks  # those that go into no other one
            for later in meetings[index + 1 :]:
                leave = np.setdiff1d(leave, later.ranks)
            if leave.size:
                together = spans.left[:, leave].min(axis=1, keepdims=True)
                over = np.where(each.whole[:, None], np.fmax(over, together), over)
        over = np.fmax(begin, np.fmin(over, spans.left[:, each.ranks]))  # clocks may let one leave early
        rows = spans.rows[:, each.ranks][each.whole]
        seconds = (over - begin)[each.whole]
        yield rows.ravel(), begin[each.whole].ravel(), seconds.ravel(), number + index
        if spans.inside:
            shorter[rows] = np.maximum(shorter[rows] - seconds, 0.0)
        since[:, each.ranks] = over


def _with_rows(
    table: OperationTable, new: list[tuple[Ints, Floats, Floats, int]], shorter: Floats
) -> OperationTable:
    """Return the table with the waits; what hid one begins when it is over."""
    start = table.start_seconds + (table.duration_seconds - shorter)
    table = replace(table, start_seconds=start, duration_seconds=shorter)
    like, begin, seconds = (np.concatenate([each[part] for each in new]) for part in range(3))
    meeting = np.concatenate([np.full(len(rows), number) for rows, _, _, number in new])
    names = (f"{HIDDEN_WAIT} {number}" for number in range(int(meeting.max()) + 1))
    return _with_operation(
        table,
        like.astype(np.int64),
        HIDDEN_WAIT,
        Kind.COMMUNICATION,
        begin,
        seconds,
        microbatch=np.zeros(len(like), dtype=np.int32),
        group=(len(table.groups) + meeting).astype(np.int32),
        groups=(*table.groups, *names),
    )


def _with_operation(
    table: OperationTable, like: Ints, name: str, kind: Kind, start: Floats, seconds: Floats, **columns: Any
) -> OperationTable:
    """Return the table with rows of one new operation, each like another row in all other columns."""
    count = len(like)
    added = replace(
        table.take(like),
        operation=np.full(count, len(table.operations), dtype=np.int32),
        kind=np.full(count, kind, dtype=np.int8),
        start_seconds=start,
        duration_seconds=seconds,
        work=np.full(count, np.nan),
        operations=(*table.operations, name),
        **columns,
    )
    return table.followed_by(added)


def reveal_stalls(table: OperationTable, pauses: Floats) -> OperationTable:
    """Return the table with a row for each long pause; `pauses`: seconds by row, without waits for others."""
    if table.stage.min() != table.stage.max() and not (table.sends.any() and table.receives.any()):
        return table  # a pause may be a message that has no row
    kind = Groups.by(table.stage, table.operation)
    usual = np.maximum(kind.low_quantile(pauses, _USUAL)[kind.number], 0.0)
    excess = np.maximum(pauses - usual, 0.0)
    cell = table.cells.groups
    stalled = cell.sum(excess) >= _LEAST_STALL_SHARE * max(table.median_span_seconds(), 1e-12)
    rows = np.flatnonzero(stalled[cell.number] & (excess > 0.0))
    if rows.size == 0:
        return table
    return _with_operation(
        table, rows, STALL, Kind.OTHER, table.start_seconds[rows] - excess[rows], excess[rows]
    )
