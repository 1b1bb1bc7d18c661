"""Who meets whom in communication: the instances of collectives, and the send that each receive waits for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_agent.diagnosis.operations.table import Kind, OperationTable
from rankwatch_agent.diagnosis.straggler.arrays import Floats, Ints, codes, combine
from rankwatch_agent.diagnosis.straggler.messages import NONE, message_waits, occurrence, point_to_point


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


def meet(table: OperationTable, order: Ints) -> Meetings:
    """`order` sorts the rows by step, rank and start."""
    sends, receives = point_to_point(table)
    communication = table.kind == Kind.COMMUNICATION
    collective, count = _collectives(table, order, communication & ~sends & ~receives)
    waits_for = message_waits(table, order)
    transfer = np.where(communication, table.duration_seconds, 0.0)
    if count:
        shortest = np.full(count, np.inf)
        members = collective >= 0
        np.minimum.at(shortest, collective[members], table.duration_seconds[members])
        transfer[members] = shortest[collective[members]]
    transfer[receives] = 0.0  # waiting, and what of it is transfer is the sender's
    lonely = receives & (waits_for == NONE)
    transfer[lonely] = table.duration_seconds[lonely]
    return Meetings(collective, count, waits_for, transfer)


def _collectives(table: OperationTable, order: Ints, rows: NDArray[np.bool_]) -> tuple[Ints, int]:
    """The n-th run of an operation in a group and step is one instance, on whichever rank it runs."""
    found = np.full(len(table), NONE, dtype=np.int64)
    ordered = order[rows[order]]
    if ordered.size == 0:
        return found, 0
    steps, step = codes(table.step[ordered])
    ranks, rank = codes(table.rank[ordered])
    # Where groups are not told, the ranks of a stage are one.
    named = np.array([bool(name) for name in table.groups], dtype=np.bool_)[table.group[ordered]]
    place = np.where(named, table.group[ordered], len(table.groups) + table.stage[ordered])
    groups, group = codes(place)
    same = combine(
        (step, len(steps)),
        (group, len(groups)),
        (table.operation[ordered].astype(np.int64), len(table.operations)),
    )
    _, same = codes(same)
    number = occurrence(same * len(ranks) + rank, np.arange(len(ordered)))
    distinct, instance = codes(same * (int(number.max()) + 1) + number)
    found[ordered] = instance
    return found, len(distinct)
