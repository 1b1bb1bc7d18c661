"""Who waits for whom in communication: instances of collectives, and the messages beside them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, cumcount
from rankwatch_diagnosis.operations.table import NO_ROW, Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.members import declared_parts, observed_parts
from rankwatch_diagnosis.straggler.graph.messages import match_messages


class Communication(NamedTuple):
    """By row of the table; -1 stands for none."""

    together: Ints
    """Number of what it ends with: the instance of a collective on all its members, or a batch."""
    collective: Ints
    """The same, of collectives alone."""
    collectives: int
    """Number of instances of collectives, which come first."""
    partner: Ints
    """Row at the other end of a message."""
    meets: Ints
    """Row whose arrival this row waits for, on another rank."""
    waits_for: Ints
    """Row whose end this row waits for, on another rank."""
    transfer: Floats
    """Seconds of communication without the wait: of a collective, what its last arriver spends."""


def match_communication(table: OperationTable, *, infer_members: bool = True) -> Communication:
    """Match all communication of a table.

    `infer_members` finds members by their times where the table does not name them.
    """
    rows = (table.kind == Kind.COMMUNICATION) & ~table.sends & ~table.receives
    collective, kinds = _collectives(table, rows, infer_members=infer_members)
    messages = match_messages(table)
    transfer = messages.transfer
    members = collective >= 0
    instances = Groups(collective[members], len(kinds.number))
    transfer[members] = _transfers(table.duration_seconds[members], instances, kinds)[instances.number]
    batched = messages.batch >= 0
    return Communication(
        together=np.where(batched, instances.count + messages.batch, collective),
        collective=collective,
        collectives=instances.count,
        partner=messages.partner,
        meets=messages.meets,
        waits_for=messages.waits_for,
        transfer=transfer,
    )


def _transfers(seconds: Floats, instances: Groups, kinds: Groups) -> Floats:
    """By instance: what its last arriver spends. `kinds` groups instances that are the same in every step.

    A member that is not in the table may have been the last, and what the others spend may be a wait for it.
    Then no more is taken than what complete instances of other steps typically spend.
    """
    shortest = instances.min(seconds)
    members = instances.size()
    complete = members == kinds.max(members.astype(np.float64))[kinds.number]
    if complete.all():
        return shortest
    typical = kinds.median(np.where(complete, shortest, np.nan))[kinds.number]
    return np.where(complete, shortest, np.fmin(shortest, typical))


def _collectives(table: OperationTable, rows: Bools, *, infer_members: bool) -> tuple[Ints, Groups]:
    """By row its instance, and by instance a number for what is the same in every step.

    The n-th run of an operation in a group and step is one instance, on whichever rank it runs.
    """
    found = np.full(len(table), NO_ROW, dtype=np.int64)
    ordered = table.order[rows[table.order]]
    if ordered.size == 0:
        return found, Groups(np.empty(0, dtype=np.int64), 0)
    operation = Groups.by(table.group[ordered], table.operation[ordered]).number
    run = cumcount(Groups.by(table.step[ordered], table.rank[ordered], operation).number)
    kind = Groups.by(operation, run).number
    part = observed_parts(table, ordered, kind) if infer_members else declared_parts(table, ordered)
    kind_part = Groups.by(kind, part).number
    instances = Groups.by(kind_part, table.step[ordered])
    found[ordered] = instances.number
    return found, Groups.by(instances.first(kind_part))
