"""One clock for all ranks: hosts share none, but whoever meets leaves together.

Members of a collective end it at the same moment, and so do the two ends of a message, or the receive ends
last. In each step a rank gets the offset that makes these ends agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.graph.collectives import Communication
from rankwatch_diagnosis.straggler.graph.pipeline import NONE, point_to_point
from rankwatch_diagnosis.straggler.graph.tolerance import clock_seconds
from rankwatch_diagnosis.straggler.group_by import (
    Bools,
    Floats,
    Groups,
    Ints,
    factorize,
    group_first,
    group_max,
    group_mean,
    group_min,
    group_size,
    ngroup,
)

_MOST_ROUNDS = 64
"""Ranks that are further apart than this many meetings keep their clocks."""


class Aligned(NamedTuple):
    """A table whose ranks share a clock in each step, as far as they meet."""

    table: OperationTable
    clock: Ints
    """By row: rows of equal number are on one clock."""


def align_clocks(table: OperationTable, communication: Communication) -> Aligned:
    """Shift the starts of each rank in each step so that those who meet leave together."""
    cell = ngroup(table.step, table.rank)
    end = table.start_seconds + table.duration_seconds
    member, instance = _collective_ends(cell, communication)
    tolerance = clock_seconds(table)
    together = member.size and _spread(end[member], instance) <= tolerance
    if together and _come_after_they_were_sent(table, communication, end, tolerance):
        return Aligned(table, ngroup(table.step).number)
    offset, clock = _offsets(table, communication, cell, end, member, instance)
    return Aligned(
        replace(table, start_seconds=table.start_seconds + offset[cell.number]), clock[cell.number]
    )


def _collective_ends(cell: Groups, communication: Communication) -> tuple[Ints, Groups]:
    """Rows of collectives with several members, and their instances."""
    rows = np.flatnonzero(communication.collective >= 0)
    if rows.size == 0:
        return rows, Groups(rows, 0)
    instance = Groups(communication.collective[rows], communication.collectives)
    several = (group_size(instance) > 1)[instance.number]
    number, numbers = factorize(instance.number[several])
    return rows[several], Groups(number, len(numbers))


def _spread(ends: Floats, instance: Groups) -> float:
    """How far the ends of a meeting are apart, in nine of ten."""
    return float(np.quantile(group_max(ends, instance) - group_min(ends, instance), 0.9))


def _come_after_they_were_sent(
    table: OperationTable, communication: Communication, end: Floats, tolerance: float
) -> bool:
    """False if a message whose peer is known came before it was sent, by the clocks of its ranks."""
    if table.peer is None:
        return True
    lead = _leads(table, communication, end)[2]
    return not (lead < -tolerance).any()


def _offsets(
    table: OperationTable,
    communication: Communication,
    cell: Groups,
    end: Floats,
    member: Ints,
    instance: Groups,
) -> tuple[Floats, Ints]:
    """By (step, rank) its offset, and the number of its clock: those that meet, directly or through others.

    The first rank of each clock keeps its time, and the others follow meeting by meeting.
    """
    pairs = _message_offsets(table, communication, cell, end)
    clock = _connected(cell.count, member, instance, cell, pairs)
    known = np.zeros(cell.count, dtype=np.bool_)
    known[group_first(np.arange(cell.count), Groups(clock, int(clock.max()) + 1))] = True
    offset = np.zeros(cell.count)
    at = cell.number[member]
    for _ in range(_MOST_ROUNDS):
        told, by = _from_collectives(end[member], at, instance, offset, known, cell.count)
        more, also = _from_messages(pairs, offset, known, cell.count)
        total = by + also
        new = ~known & (total > 0)
        if not new.any():
            break
        offset[new] = ((told + more)[new]) / total[new]
        known |= new
    clock = np.where(known, clock, int(clock.max()) + 1 + np.arange(cell.count))
    return offset, clock


def _from_collectives(
    ends: Floats, at: Ints, instance: Groups, offset: Floats, known: Bools, cells: int
) -> tuple[Floats, Floats]:
    """By cell: the sum of offsets that its collectives ask for, and their number."""
    seen = known[at]
    common = group_mean(
        np.where(seen, ends + offset[at], 0.0)[seen], Groups(instance.number[seen], instance.count)
    )
    asked = common[instance.number] - ends
    there = np.isfinite(asked)
    total, count = np.zeros(cells), np.zeros(cells)
    np.add.at(total, at[there], asked[there])
    np.add.at(count, at[there], 1.0)
    return total, count


class _Pairs(NamedTuple):
    """Pairs of (step, rank) that exchange messages."""

    one: Ints
    other: Ints
    ahead: Floats
    """Seconds by which the clock of `other` is ahead of that of `one`."""


def _message_offsets(
    table: OperationTable, communication: Communication, cell: Groups, end: Floats
) -> _Pairs:
    """Nobody has a message before it was sent, so the smallest lead shows how far clocks differ.

    With messages both ways the truth lies in the middle of the two smallest leads.
    """
    given, asking, lead = _leads(table, communication, end)
    if given.size == 0:
        return _Pairs(given, asking, lead)
    source, target = cell.number[given], cell.number[asking]
    low, high = np.minimum(source, target), np.maximum(source, target)
    pair = ngroup(low, high)
    upwards = source < target
    up = group_min(np.where(upwards, lead, np.inf), pair)
    down = group_min(np.where(upwards, np.inf, lead), pair)
    both = np.isfinite(up) & np.isfinite(down)
    ahead = np.where(both, (np.where(both, up, 0.0) - np.where(both, down, 0.0)) / 2.0, 0.0)
    ahead = np.where(both, ahead, np.where(np.isfinite(up), up, -down))
    return _Pairs(group_first(low, pair), group_first(high, pair), ahead)


def _leads(table: OperationTable, communication: Communication, end: Floats) -> tuple[Ints, Ints, Floats]:
    """Rows that give and rows that take, and by how much later the one that takes could go on."""
    receives = point_to_point(table)[1]
    named = np.flatnonzero(receives & (communication.partner != NONE))
    if table.ahead_seconds is not None:  # where a wait began late, it may end late
        named = named[(table.ahead_seconds[named] + table.ahead_seconds[communication.partner[named]]) == 0.0]
    implied = np.flatnonzero((communication.waits_for != NONE) & (communication.partner == NONE))
    given = np.r_[communication.partner[named], communication.waits_for[implied]]
    goes_on = np.where(receives[implied], end[implied], table.start_seconds[implied])
    return given, np.r_[named, implied], np.r_[end[named], goes_on] - end[given]


def _from_messages(pairs: _Pairs, offset: Floats, known: Bools, cells: int) -> tuple[Floats, Floats]:
    """The same as `_from_collectives`, of messages."""
    total, count = np.zeros(cells, dtype=np.float64), np.zeros(cells, dtype=np.float64)
    for given, asking, ahead in (
        (pairs.one, pairs.other, -pairs.ahead),
        (pairs.other, pairs.one, pairs.ahead),
    ):
        there = known[given]
        np.add.at(total, asking[there], (offset[given] + ahead)[there])
        np.add.at(count, asking[there], 1.0)
    return total, count


def _connected(cells: int, member: Ints, instance: Groups, cell: Groups, pairs: _Pairs) -> Ints:
    """By cell the number of its clock: the lowest cell that it meets, directly or through others."""
    label = np.arange(cells)
    at = cell.number[member]
    while True:
        before = label.copy()
        if at.size:
            lowest = np.full(instance.count, cells)
            np.minimum.at(lowest, instance.number, label[at])
            np.minimum.at(label, at, lowest[instance.number])
        if pairs.one.size:
            lower = np.minimum(label[pairs.one], label[pairs.other])
            np.minimum.at(label, pairs.one, lower)
            np.minimum.at(label, pairs.other, lower)
        if (label == before).all():
            return factorize(label)[0]
