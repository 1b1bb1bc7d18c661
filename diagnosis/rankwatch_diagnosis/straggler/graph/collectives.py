"""Who waits for whom in communication: instances of collectives, and the messages beside them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.members import declared_parts, observed_parts
from rankwatch_diagnosis.straggler.graph.messages import match_messages
from rankwatch_diagnosis.straggler.graph.pipeline import NONE, point_to_point
from rankwatch_diagnosis.straggler.group_by import (
    Bools,
    Floats,
    Groups,
    Ints,
    cumcount,
    group_first,
    group_max,
    group_median,
    group_min,
    group_size,
    ngroup,
)


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


def match_communication(table: OperationTable, order: Ints, *, infer_members: bool = True) -> Communication:
    """Match all communication of a table; `order` sorts its rows by step, rank and start.

    `infer_members` finds members by their times where the table does not name them.
    """
    sends, receives = point_to_point(table)
    rows = (table.kind == Kind.COMMUNICATION) & ~sends & ~receives
    collective, kinds = _collectives(table, order, rows, infer_members=infer_members)
    messages = match_messages(table, order)
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
    shortest = group_min(seconds, instances)
    members = group_size(instances)
    complete = members == group_max(members.astype(np.float64), kinds)[kinds.number]
    if complete.all():
        return shortest
    typical = group_median(np.where(complete, shortest, np.nan), kinds)[kinds.number]
    return np.where(complete, shortest, np.fmin(shortest, typical))


def _collectives(
    table: OperationTable, order: Ints, rows: Bools, *, infer_members: bool
) -> tuple[Ints, Groups]:
    """By row its instance, and by instance a number for what is the same in every step.

    The n-th run of an operation in a group and step is one instance, on whichever rank it runs.
    """
    found = np.full(len(table), NONE, dtype=np.int64)
    ordered = order[rows[order]]
    if ordered.size == 0:
        return found, Groups(np.empty(0, dtype=np.int64), 0)
    operation = ngroup(table.group[ordered], table.operation[ordered]).number
    run = cumcount(ngroup(table.step[ordered], table.rank[ordered], operation).number)
    kind = ngroup(operation, run).number
    part = observed_parts(table, order, ordered, kind) if infer_members else declared_parts(table, ordered)
    kind_part = ngroup(kind, part).number
    instances = ngroup(kind_part, table.step[ordered])
    found[ordered] = instances.number
    return found, ngroup(group_first(kind_part, instances))
