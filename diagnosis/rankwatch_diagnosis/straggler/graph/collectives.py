"""Who waits for whom in communication: instances of collectives, and the messages beside them.

A table need not hold the members of a process group, and one group name may stand for many groups. Members of
a blocking collective leave it at the same moment: a member that comes a second later stays a second less. A
rank of another group stays as long as its own group keeps it, whenever it comes. Clocks of ranks need not
agree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.messages import match_messages
from rankwatch_diagnosis.straggler.graph.pipeline import NONE, point_to_point
from rankwatch_diagnosis.straggler.group_by import (
    Bools,
    Floats,
    Groups,
    Ints,
    cumcount,
    factorize,
    group_first,
    group_max,
    group_mean,
    group_median,
    group_min,
    group_size,
    group_sum,
    ngroup,
)

_ONE_FOR_ONE = (0.7, 1.3)
"""Seconds later for each second less: 1 for members, whatever clocks do."""
_TOGETHER = 0.15
_APART = 0.05
"""Part of the variance of arrivals that the stay explains: all of it for members, but for clocks that vary,
and nothing for strangers. Between the two the table is taken at its word."""


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
    part = _declared_parts(table, ordered)
    if infer_members:
        left = _seconds_until_left(table, ordered)
        part = _observed_parts(table, ordered, kind, left, left - _stay(table, order)[ordered])
    kind_part = ngroup(kind, part).number
    instances = ngroup(kind_part, table.step[ordered])
    found[ordered] = instances.number
    return found, ngroup(group_first(kind_part, instances))


def _declared_parts(table: OperationTable, rows: Ints) -> Ints:
    """By row of collectives: 0 where all ranks of its kind take part, or else a number for its part of them.

    By the table alone: the ranks of a stage are members of a collective without a group.
    """
    stage, stages = factorize(table.stage[rows])
    return np.where(_has_group(table, rows) | (len(stages) == 1), 0, 1 + stage)


def _observed_parts(table: OperationTable, rows: Ints, kind: Ints, left: Floats, arrived: Floats) -> Ints:
    """The same, by which ranks leave together.

    `kind` numbers what is the same in every step: the group (one number for none), the operation and which of
    its runs in the step it is. `left` and `arrived` are seconds of the rank's clock.
    """
    stage = ngroup(table.stage[rows])
    block = ngroup(table.stage[rows], table.replica[rows])
    step = factorize(table.step[rows])[0]
    everywhere = np.zeros(len(rows), dtype=np.int64)
    part = everywhere.copy()
    if stage.count > 1:
        explained = _explained(kind, step, everywhere, stage.number, left, arrived)
        apart = np.where(_has_group(table, rows), explained.share < _APART, ~(explained.least > _TOGETHER))
        part = np.where(apart, 1 + stage.number, 0)
    if _blocks_have_several_ranks(table, rows, block) and block.count > stage.count:
        explained = _explained(kind, step, stage.number, block.number, left, arrived)
        alone = (part > 0) | (stage.count == 1)
        part = np.where(alone & (explained.share < _APART), 1 + stage.count + block.number, part)
    return part


def _has_group(table: OperationTable, rows: Ints) -> Bools:
    return np.array([bool(name) for name in table.groups], dtype=np.bool_)[table.group[rows]]


def _blocks_have_several_ranks(table: OperationTable, rows: Ints, block: Groups) -> bool:
    """True if ranks share stage and replica, as those of tensor parallelism do."""
    ranks = len(np.unique(table.rank[rows]))
    return ngroup(block.number, table.rank[rows]).count == ranks and ranks > block.count


class _Explained(NamedTuple):
    """By row: part of the variance of arrivals that the stay explains, second for second."""

    share: Floats
    least: Floats
    """The lower one of even and odd steps: among many collectives some fit by chance, but not twice."""


def _explained(kind: Ints, step: Ints, within: Ints, unit: Ints, left: Floats, arrived: Floats) -> _Explained:
    """Of each kind, its units (stages or replicas) against each other, in the same step and `within`."""
    cell = ngroup(kind, within, step, unit)
    kind, within, step, unit = (group_first(each, cell) for each in (kind, within, step, unit))  # by cell
    rendezvous, home = ngroup(kind, within, step), ngroup(kind, within, unit)
    of_kind = ngroup(kind)
    # Only steps count in which everybody is seen: clocks differ, and who is left out would shift the means.
    whole = _is_whole(cell, rendezvous, home, ngroup(kind, within).number)

    def deviation(seconds: Floats) -> Floats:
        mean = group_mean(seconds, cell)
        against = np.where(whole, mean - group_mean(mean, rendezvous)[rendezvous.number], np.nan)
        return np.nan_to_num(against - group_median(against, home)[home.number])

    stay, arrival = deviation(left - arrived), deviation(arrived)
    share = _share(stay, arrival, of_kind)
    halves = Groups(of_kind.number * 2 + step % 2, 2 * of_kind.count)
    least = _share(stay, arrival, halves).reshape(of_kind.count, 2).min(axis=1)
    by_row = of_kind.number[cell.number]
    return _Explained(share[by_row], least[by_row])


def _is_whole(cell: Groups, rendezvous: Groups, home: Groups, place: Ints) -> Bools:
    """By cell: its rendezvous has several units, as many as ever, and each of them all of its rows."""
    size = group_size(cell).astype(np.float64)
    lacks = (size < group_max(size, home)[home.number]) * 1.0
    units = group_size(rendezvous).astype(np.float64)
    places = ngroup(group_first(place, rendezvous))
    lacks += (units < group_max(units, places)[places.number])[rendezvous.number]
    whole: Bools = ((group_sum(lacks, rendezvous) == 0.0) & (units > 1))[rendezvous.number]
    return whole


def _share(stay: Floats, arrival: Floats, groups: Groups) -> Floats:
    """By group: cov(stay, arrival)^2 / (var stay * var arrival); 0 unless it is second for second."""
    both = -group_sum(stay * arrival, groups)
    stays, arrivals = group_sum(stay * stay, groups), group_sum(arrival * arrival, groups)
    seen = (stays > 0.0) & (arrivals > 0.0)
    slope = np.divide(both, stays, out=np.full(groups.count, np.nan), where=seen)
    share: Floats = np.divide(both, arrivals, out=np.full(groups.count, np.nan), where=seen) * slope
    share[seen & ((slope < _ONE_FOR_ONE[0]) | (slope > _ONE_FOR_ONE[1]))] = 0.0
    return share


def _seconds_until_left(table: OperationTable, rows: Ints) -> Floats:
    """By row: seconds from the first start of its rank to its end, so that little is rounded away."""
    of_rank = ngroup(table.rank)
    begin = group_min(table.start_seconds, of_rank)
    since: Floats = table.start_seconds[rows] - begin[of_rank.number[rows]] + table.duration_seconds[rows]
    return since


def _stay(table: OperationTable, order: Ints) -> Floats:
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
