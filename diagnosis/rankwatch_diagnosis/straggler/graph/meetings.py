"""Who meets whom in communication: the instances of collectives, and the send that each receive waits for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes, combine, grouped_median
from rankwatch_diagnosis.straggler.graph.gatherings import codes_of, parts, places
from rankwatch_diagnosis.straggler.graph.messages import NONE, message_waits, occurrence, point_to_point

_MOST_LONELY = 0.25
"""Share of receives without their send. Up to here these are gaps in the table, and they take a wait."""


class Meetings(NamedTuple):
    """By row of the table; -1 stands for none."""

    collective: Ints
    """Number of the instance of a collective; its members hold the same number."""
    collectives: int
    """How many instances there are."""
    waits_for: Ints
    """Row whose end this row waits for, on another rank."""
    transfer: Floats
    """Seconds of communication without the wait: of a collective what its last arriver spends."""


def meet(table: OperationTable, order: Ints, *, guess: bool = True) -> Meetings:
    """`order` sorts the rows by step, rank and start; `guess` who gathers where the table does not tell."""
    sends, receives = point_to_point(table)
    communication = table.kind == Kind.COMMUNICATION
    collective, kinds = _collectives(table, order, communication & ~sends & ~receives, guess=guess)
    waits_for = message_waits(table, order)
    transfer = np.where(communication, table.duration_seconds, 0.0)
    members = collective >= 0
    transfer[members] = _shortest(table.duration_seconds[members], collective[members], kinds)[
        collective[members]
    ]
    transfer[receives] = 0.0  # waiting, and what of it is transfer is the sender's
    lonely = receives & (waits_for == NONE)
    if lonely.sum() > _MOST_LONELY * receives.sum():  # else the rank that sends is left out of some steps
        transfer[lonely] = table.duration_seconds[lonely]
    return Meetings(collective, len(kinds), waits_for, transfer)


def _shortest(seconds: Floats, instance: Ints, kinds: Ints) -> Floats:
    """By instance: what its last arriver spends.

    Where a member is not in the table, it may have been the last, and what the others spend may be a wait for
    it. Then no more is taken than what complete instances of other steps typically spend.
    """
    count = len(kinds)
    shortest = np.full(count, np.inf)
    np.minimum.at(shortest, instance, seconds)
    members = np.bincount(instance, minlength=count)
    most = np.zeros(int(kinds.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(most, kinds, members)
    complete = members == most[kinds]
    if complete.all():
        return shortest
    typical = grouped_median(np.where(complete, shortest, np.nan), kinds, len(most))[kinds]
    return np.where(complete, shortest, np.fmin(shortest, typical))


def _collectives(
    table: OperationTable, order: Ints, rows: NDArray[np.bool_], *, guess: bool
) -> tuple[Ints, Ints]:
    """The n-th run of an operation in a group and step is one instance, on whichever rank it runs.

    By row the instance, and by instance a number for what is the same in every step.
    """
    found = np.full(len(table), NONE, dtype=np.int64)
    ordered = order[rows[order]]
    if ordered.size == 0:
        return found, np.empty(0, dtype=np.int64)
    key, number = _runs(table, ordered)
    runs = int(number.max()) + 1
    kinds, kind = codes(key * runs + number)
    part = places(table, ordered)
    if guess:
        left = _since_begin(table, ordered)
        part = parts(table, ordered, kind, left, left - _seconds_there(table, order)[ordered])
    steps = codes_of(table.step[ordered])
    distinct, found[ordered] = codes(combine((kind, len(kinds)), (part, int(part.max()) + 1), steps))
    return found, codes(distinct // steps[1])[1]


def _runs(table: OperationTable, ordered: Ints) -> tuple[Ints, Ints]:
    """By row, in order of time: group and operation, and the how manieth run of it in its step and rank."""
    key = combine(
        codes_of(table.group[ordered]), (table.operation[ordered].astype(np.int64), len(table.operations))
    )
    mine = combine(codes_of(table.step[ordered]), codes_of(table.rank[ordered]), codes_of(key))
    return key, occurrence(mine, np.arange(len(ordered)))


def _since_begin(table: OperationTable, rows: Ints) -> Floats:
    """By row: seconds from the first start of its rank to its end, so that little is rounded away."""
    ranks, rank = codes(table.rank)
    begin = np.full(len(ranks), np.inf)
    np.minimum.at(begin, rank, table.start_seconds)
    since: Floats = table.start_seconds[rows] - begin[rank[rows]] + table.duration_seconds[rows]
    return since


def _seconds_there(table: OperationTable, order: Ints) -> Floats:
    """By row: seconds to its end from that of the row before on its rank, or from its own start."""
    start, end = table.start_seconds[order], (table.start_seconds + table.duration_seconds)[order]
    follows = np.zeros(len(order), dtype=np.bool_)
    follows[1:] = (table.rank[order][1:] == table.rank[order][:-1]) & (
        table.step[order][1:] == table.step[order][:-1]
    )
    pause = np.where(follows, np.maximum(start - np.r_[start[:1], end[:-1]], 0.0), 0.0)
    seconds = np.empty(len(order))
    seconds[order] = end - start + pause
    return seconds
