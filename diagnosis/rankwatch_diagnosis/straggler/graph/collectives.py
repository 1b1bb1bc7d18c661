"""Who waits for whom in communication: instances of collectives, and the messages beside them.

A table need not hold the members of a process group, and one group name may stand for many groups. A name is
trusted where its ranks look like one group. Else their times tell: members of a blocking collective leave it
at the same moment. Where ranks share a clock, that is to be seen. Where they do not, a member that comes a
second later stays a second less, whereas a rank of another group stays as long as its own group keeps it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, cumcount, factorize
from rankwatch_diagnosis.operations.table import NO_ROW, Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.chains import clock_seconds
from rankwatch_diagnosis.straggler.graph.messages import match_messages

_ONE_FOR_ONE = (0.7, 1.3)
"""Seconds later for each second less: 1 for members, whatever clocks do."""
_TOGETHER = 0.15
_APART = 0.05
"""Part of the variance of arrivals that the stay explains: all of it for members, but for clocks that vary,
and nothing for strangers. Between the two the table is taken at its word."""
_MOSTLY = 0.9
_MOSTLY_SHARED = 0.5
"""Of the rows of collectives that must leave together before a clock counts as shared."""


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
    partner, meets, waits_for, batch, transfer = match_messages(table)
    members = collective >= 0
    instances = Groups(collective[members], len(kinds.number))
    transfer[members] = _transfers(table.duration_seconds[members], instances, kinds)[instances.number]
    return Communication(
        together=np.where(batch >= 0, instances.count + batch, collective),
        collective=collective,
        collectives=instances.count,
        partner=partner,
        meets=meets,
        waits_for=waits_for,
        transfer=transfer,
    )


def _transfers(seconds: Floats, instances: Groups, kinds: Groups) -> Floats:
    """Return by instance what its last arriver spends; `kinds` groups those that are the same in every step.

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
    """Return by row its instance, and by instance a number for what is the same in every step.

    The n-th run of an operation in a group and step is one instance, on whichever rank it runs.
    """
    found = np.full(len(table), NO_ROW, dtype=np.int64)
    ordered = table.order[rows[table.order]]
    if ordered.size == 0:
        return found, Groups(np.empty(0, dtype=np.int64), 0)
    operation = Groups.by(table.group[ordered], table.operation[ordered]).number
    run = cumcount(Groups.by(table.step[ordered], table.rank[ordered], operation).number)
    kind = Groups.by(operation, run).number
    grouped = np.array([bool(name) for name in table.groups], dtype=np.bool_)[table.group[ordered]]
    stage = Groups.by(table.stage[ordered])
    if infer_members:
        part = _observed_parts(table, ordered, kind, stage, grouped)
    else:  # by the table alone: the ranks of a stage are members of a collective without a group
        part = np.where(grouped | (stage.count == 1), 0, 1 + stage.number)
    kind_part = Groups.by(kind, part)
    instances = Groups.by(kind_part.number, table.step[ordered])
    found[ordered] = instances.number
    return found, Groups(instances.first(kind_part.number), kind_part.count)


def _observed_parts(table: OperationTable, rows: Ints, kind: Ints, stage: Groups, grouped: Bools) -> Ints:
    """Return by row of collectives 0 where all ranks of its kind take part, or else a number for its part of
    them, by which ranks leave together. A group is trusted whose ranks look like one.

    `kind` numbers what is the same in every step: the group (one number for none), the operation and which of
    its runs in the step it is. `grouped`: it has a group.
    """
    replica = Groups.by(table.replica[rows])
    block = Groups.by(stage.number, replica.number)
    part = _parts_by_clock(table, rows, kind, (Groups(np.zeros_like(kind), 1), replica, stage, block))
    if part is None:
        part = _parts_by_times(table, rows, kind, stage, block, grouped)
    group = Groups(table.group[rows].astype(np.int64), len(table.groups))
    one_replica, one_stage = (group.max(unit.number) == group.min(unit.number) for unit in (replica, stage))
    member, held = Groups.by(group.number, table.rank[rows]), Groups.by(group.number, block.number)
    members, blocks = (
        np.bincount(each.first(group.number), minlength=group.count) for each in (member, held)
    )
    # All of one replica, or one of each in one stage.
    alike = one_replica | (one_stage & (members == blocks))
    return np.where(grouped & alike[group.number], 0, part)


def _parts_by_clock(
    table: OperationTable, rows: Ints, kind: Ints, units_of: tuple[Groups, ...]
) -> Ints | None:
    """Return by row its part: the job, its replica, its stage, its block of both, or itself: the largest
    whose ranks leave together on the clock of the table. None where ranks do not share one.
    """
    end, step, tolerance = table.end_seconds[rows], table.step[rows], clock_seconds(table)
    part = sum(each.count for each in units_of) + Groups.by(table.rank[rows]).number
    decided = np.zeros(len(rows), dtype=np.bool_)
    first = 0
    for units in units_of:
        # Whether the rows of a kind leave within the tolerance in nine of ten meetings of a unit.
        meeting = Groups.by(kind, step, units.number)
        several = meeting.size() > 1
        agrees = several & (meeting.max(end) - meeting.min(end) <= tolerance)
        of_kind = Groups(meeting.first(kind), int(kind.max()) + 1)
        met, agree = (of_kind.sum(each.astype(np.float64)) for each in (several, agrees))
        together: Bools = ((met > 0) & (agree >= _MOSTLY * met))[kind]
        chosen = together & ~decided
        part[chosen] = first + units.number[chosen]
        decided |= together
        first += units.count
    # Whatever ranks do, by a clock of each nobody would leave together.
    return part if decided.mean() >= _MOSTLY_SHARED else None


def _parts_by_times(
    table: OperationTable, rows: Ints, kind: Ints, stage: Groups, block: Groups, grouped: Bools
) -> Ints:
    """Return by row its part, whatever clocks ranks have."""
    left, arrived = _left_and_arrived(table, rows)
    step = factorize(table.step[rows])[0]
    everywhere = np.zeros(len(rows), dtype=np.int64)
    part = everywhere
    if stage.count > 1:
        share, least = _explained(kind, step, everywhere, stage.number, left, arrived)
        part = np.where(np.where(grouped, share < _APART, ~(least > _TOGETHER)), 1 + stage.number, 0)
    # Ranks share stage and replica where they are tensor parallel.
    ranks = len(np.unique(table.rank[rows]))
    homes = Groups.by(block.number, table.rank[rows]).count
    if homes == ranks > block.count > stage.count:
        share, _ = _explained(kind, step, stage.number, block.number, left, arrived)
        alone = (part > 0) | (stage.count == 1)
        part = np.where(alone & (share < _APART), 1 + stage.count + block.number, part)
    return part


def _left_and_arrived(table: OperationTable, rows: Ints) -> tuple[Floats, Floats]:
    """Return by row the end, and the end of the row before on its rank or else the start: seconds since the
    first start of the rank, so that little is rounded away.
    """
    of_rank = Groups(table.cells.rank, len(table.cells.ranks))
    begin = of_rank.min(table.start_seconds)
    left: Floats = table.start_seconds[rows] - begin[of_rank.number[rows]] + table.duration_seconds[rows]
    order = table.order
    start, end = table.start_seconds[order], table.end_seconds[order]
    rank, step = table.rank[order], table.step[order]
    follows = np.r_[False, (rank[1:] == rank[:-1]) & (step[1:] == step[:-1])]
    pause = np.where(follows, np.maximum(start - np.r_[start[:1], end[:-1]], 0.0), 0.0)
    stay = np.empty(len(order))
    stay[order] = end - start + pause
    return left, left - stay[rows]


def _explained(
    kind: Ints, step: Ints, within: Ints, unit: Ints, left: Floats, arrived: Floats
) -> tuple[Floats, Floats]:
    """Return by row the part of the variance of arrivals that the stay explains, second for second; and the
    lower one of even and odd steps: among many collectives some fit by chance, but not twice.

    Of each kind, its units (stages or replicas) stand against each other, in the same step and `within`.
    """
    cell = Groups.by(kind, within, step, unit)
    kind, within, step, unit = (cell.first(each) for each in (kind, within, step, unit))  # by cell
    rendezvous, home = Groups.by(kind, within, step), Groups.by(kind, within, unit)
    of_kind = Groups.by(kind)
    # Only steps count in which everybody is seen: clocks differ, and who is left out would shift the means.
    size = cell.size().astype(np.float64)
    lacks = (size < home.max(size)[home.number]) * 1.0
    units = rendezvous.size().astype(np.float64)
    places = Groups.by(rendezvous.first(Groups.by(kind, within).number))
    lacks += (units < places.max(units)[places.number])[rendezvous.number]
    whole: Bools = ((rendezvous.sum(lacks) == 0.0) & (units > 1))[rendezvous.number]

    def deviation(seconds: Floats) -> Floats:
        mean = cell.mean(seconds)
        against = np.where(whole, mean - rendezvous.mean(mean)[rendezvous.number], np.nan)
        # From one step to the next, so that clocks may drift.
        order = np.lexsort((step, home.number))
        before = np.full(len(against), np.nan)
        follows = home.number[order][1:] == home.number[order][:-1]
        before[order[1:]] = np.where(follows, against[order[:-1]], np.nan)
        change: Floats = np.nan_to_num(against - before)
        return change

    stay, arrival = deviation(left - arrived), deviation(arrived)
    share = _share(stay, arrival, of_kind)
    halves = Groups(of_kind.number * 2 + step % 2, 2 * of_kind.count)
    least = _share(stay, arrival, halves).reshape(of_kind.count, 2).min(axis=1)
    by_row = of_kind.number[cell.number]
    return share[by_row], least[by_row]


def _share(stay: Floats, arrival: Floats, groups: Groups) -> Floats:
    """Return by group cov(stay, arrival)^2 / (var stay * var arrival); 0 unless it is second for second."""
    both = -groups.sum(stay * arrival)
    stays, arrivals = groups.sum(stay * stay), groups.sum(arrival * arrival)
    seen = (stays > 0.0) & (arrivals > 0.0)
    slope = np.divide(both, stays, out=np.full(groups.count, np.nan), where=seen)
    share: Floats = np.divide(both, arrivals, out=np.full(groups.count, np.nan), where=seen) * slope
    share[seen & ((slope < _ONE_FOR_ONE[0]) | (slope > _ONE_FOR_ONE[1]))] = 0.0
    return share
