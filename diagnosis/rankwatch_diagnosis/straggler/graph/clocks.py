"""One clock for all ranks: hosts share none, but whoever meets leaves together.

Members of a collective end it at the same moment, and so do the two ends of a message, or the receive ends
last. In each step a rank gets the offset that makes these ends agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Groups, Ints, connected, factorize
from rankwatch_diagnosis.operations.table import NO_ROW, OperationTable
from rankwatch_diagnosis.straggler.graph.chains import clock_seconds
from rankwatch_diagnosis.straggler.graph.collectives import Communication

_MOST_ROUNDS = 64
"""Ranks that are further apart than this many meetings keep their clocks."""


class Aligned(NamedTuple):
    """A table whose ranks share a clock in each step, as far as they meet."""

    table: OperationTable
    clock: Ints
    """By row: rows of equal number are on one clock."""


def align_clocks(table: OperationTable, communication: Communication) -> Aligned:
    """Shift the starts of each rank in each step so that those who meet leave together."""
    cell, end = table.cells.groups, table.end_seconds
    member, instance = _collective_ends(cell, communication)
    tolerance = clock_seconds(table)
    together = False
    if member.size:
        apart = instance.max(end[member]) - instance.min(end[member])
        together = float(np.quantile(apart, 0.9)) <= tolerance
    if together:
        # A message whose peer is known must not come before it was sent.
        named = table.peer is not None
        if not (named and (_leads(table, communication, end)[2] < -tolerance).any()):
            return Aligned(table, table.cells.step)
    offset, clock = _offsets(table, communication, cell, end, member, instance)
    return Aligned(
        replace(table, start_seconds=table.start_seconds + offset[cell.number]), clock[cell.number]
    )


def _collective_ends(cell: Groups, communication: Communication) -> tuple[Ints, Groups]:
    """Find the rows of collectives with several members, and their instances."""
    rows = np.flatnonzero(communication.collective >= 0)
    if rows.size == 0:
        return rows, Groups(rows, 0)
    instance = Groups(communication.collective[rows], communication.collectives)
    several = (instance.size() > 1)[instance.number]
    number, numbers = factorize(instance.number[several])
    return rows[several], Groups(number, len(numbers))


def _offsets(
    table: OperationTable,
    communication: Communication,
    cell: Groups,
    end: Floats,
    member: Ints,
    instance: Groups,
) -> tuple[Floats, Ints]:
    """Return by (step, rank) its offset, and the number of its clock.

    Those that meet have one clock, directly or through others. The first rank of each clock keeps its time,
    and the others follow meeting by meeting.
    """
    one, other, ahead = _message_offsets(table, communication, cell, end)
    at = cell.number[member]
    pair = instance.count + np.arange(len(one))
    meetings = Groups(np.r_[instance.number, pair, pair], instance.count + len(pair))
    clock = factorize(connected(cell.count, np.r_[at, one, other], meetings))[0]
    known = np.zeros(cell.count, dtype=np.bool_)
    known[Groups(clock, int(clock.max()) + 1).first(np.arange(cell.count))] = True
    offset = np.zeros(cell.count)
    given, asking = np.r_[one, other], np.r_[other, one]
    later, ends = np.r_[-ahead, ahead], end[member]
    for _ in range(_MOST_ROUNDS):
        seen, heard = known[at], known[given]
        ended = Groups(instance.number[seen], instance.count)
        common = ended.mean((ends + offset[at])[seen])[instance.number]
        there = np.isfinite(common)
        met, told = Groups(at[there], cell.count), Groups(asking[heard], cell.count)
        total = met.size() + told.size()
        new = ~known & (total > 0)
        if not new.any():
            break
        asked = met.sum((common - ends)[there]) + told.sum((offset[given] + later)[heard])
        offset[new] = asked[new] / total[new]
        known |= new
    clock = np.where(known, clock, int(clock.max()) + 1 + np.arange(cell.count))
    return offset, clock


def _message_offsets(
    table: OperationTable, communication: Communication, cell: Groups, end: Floats
) -> tuple[Ints, Ints, Floats]:
    """Return pairs of (step, rank) that exchange messages, and by how much the clock of the second is ahead.

    Nobody has a message before it was sent, so the smallest lead shows how far clocks differ.
    With messages both ways the truth lies in the middle of the two smallest leads.
    """
    given, asking, lead = _leads(table, communication, end)
    if given.size == 0:
        return given, asking, lead
    source, target = cell.number[given], cell.number[asking]
    low, high = np.minimum(source, target), np.maximum(source, target)
    pair = Groups.by(low, high)
    upwards = source < target
    up = pair.min(np.where(upwards, lead, np.inf))
    down = pair.min(np.where(upwards, np.inf, lead))
    both = np.isfinite(up) & np.isfinite(down)
    ahead = np.where(both, (np.where(both, up, 0.0) - np.where(both, down, 0.0)) / 2.0, 0.0)
    ahead = np.where(both, ahead, np.where(np.isfinite(up), up, -down))
    return pair.first(low), pair.first(high), ahead


def _leads(table: OperationTable, communication: Communication, end: Floats) -> tuple[Ints, Ints, Floats]:
    """Find rows that give and rows that take, and by how much later the one that takes could go on."""
    receives = table.receives
    named = np.flatnonzero(receives & (communication.partner != NO_ROW))
    if table.ahead_seconds is not None:  # where a wait began late, it may end late
        named = named[(table.ahead_seconds[named] + table.ahead_seconds[communication.partner[named]]) == 0.0]
    implied = np.flatnonzero((communication.waits_for != NO_ROW) & (communication.partner == NO_ROW))
    given = np.r_[communication.partner[named], communication.waits_for[implied]]
    goes_on = np.where(receives[implied], end[implied], table.start_seconds[implied])
    return given, np.r_[named, implied], np.r_[end[named], goes_on] - end[given]
