"""From a table of operations to a verdict: the cause first, then the rank or stage, and what it costs.

Single steps that take far longer than the usual ones are reported as events: which step, in which operation,
on which rank. One collective of 40 s among 600 short ones doubles the time of the run and is no trend. What
follows looks at the other steps only, because a cause of a slowdown is what goes on.

Each test of a cause returns candidates with the durations that the run would have without it. The replay of
these durations gives the price. The verdict is the costliest one, and the list of causes holds all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_agent.training.steps.timeouts import SECTIONS
from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.outliers import outlying
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.causes.host_work import (
    find_slow_data_loading,
    find_slow_host_work,
    find_slow_host_work_of_stages,
)
from rankwatch_diagnosis.straggler.causes.network import find_exposed_transfers, find_network, measure_links
from rankwatch_diagnosis.straggler.causes.slow_ranks import (
    find_slow_ranks,
    find_slow_replicas,
    find_suspected_ranks,
)
from rankwatch_diagnosis.straggler.causes.slow_stages import find_slow_stages
from rankwatch_diagnosis.straggler.causes.variation import find_jitter, find_unequal_batches
from rankwatch_diagnosis.straggler.difficulty import separate
from rankwatch_diagnosis.straggler.graph.stages import with_stages
from rankwatch_diagnosis.straggler.pricing import found_cause, overall_slowdown, price
from rankwatch_diagnosis.straggler.slowness import can_repeat, without
from rankwatch_diagnosis.straggler.thresholds import DEFAULT, Thresholds
from rankwatch_diagnosis.straggler.verdict import Verdict
from rankwatch_diagnosis.straggler.visits import SparseTableError

_LEAST_RANKS = 2
_SHARE_OF_WORST = 0.25
"""A slow rank goes first where it costs this part of what the costliest cause does, or 1 % of the run."""
_SHARE_OF_SUSPECTED = 0.5
"""Part of what the costliest suspicion costs; what is proved and costs as much goes first."""
_SAME_TIME = 0.95
"""Part of the cost of jitter from which on a cause that names a rank or a stage explains the same time."""
_TURN = 2
"""Shortest windows that a slow rank must last where ranks are late in turn and that costs more."""
MOST_EVENTS = 20
"""Events in a verdict, those that lost most."""
_MOST_OF_LOST = 0.5
"""Part of the lost time that an operation must hold to be named."""
_by_cost = attrgetter("slowdown")


class Examination(NamedTuple):
    """A verdict, and what it was found with."""

    verdict: Verdict
    case: Case | None
    """The steps that were judged; None where too little is recorded to judge anything."""


def diagnose(table: OperationTable) -> Verdict:
    """Return what slows the run down. Of several causes the one that costs most; `causes` has all of them."""
    return examine(table).verdict


def examine(table: OperationTable) -> Examination:
    """Return the verdict, with the case for those who look further."""
    if len(table) == 0:
        return Examination(_abstain("no operation of a complete step is recorded"), None)
    events = find_events(table)
    usual = table.take(~events.rows) if events.rows.any() else table
    trend, case = _judge_trend(usual)
    # What is there after a first, odd step was there before.
    begin = {int(usual.step.min()): int(table.step.min())}
    verdict = replace(
        trend,
        first_step=begin.get(trend.first_step, trend.first_step) if trend.first_step is not None else None,
        causes=tuple(
            replace(each, first_step=begin.get(each.first_step, each.first_step)) for each in trend.causes
        ),
        events=events.listed,
        event_seconds=events.lost_seconds,
    )
    return Examination(verdict, case)


def _judge_trend(table: OperationTable) -> Examination:
    steps, ranks = len(np.unique(table.step)), len(np.unique(table.rank))
    counts = {"steps": steps, "ranks": ranks, "operations": len(table)}
    if ranks < _LEAST_RANKS:
        return Examination(_abstain("a single rank has no peer to compare it with", counts), None)
    case = Case(with_stages(table), DEFAULT)
    if steps < DEFAULT.steps and not can_repeat(case.visits, DEFAULT):
        why = (
            f"only {steps} of the {DEFAULT.steps} steps that a verdict needs are recorded, and none of them "
            f"holds {DEFAULT.repeats} operations of a rank that could take their place"
        )
        return Examination(_abstain(why, counts), None)
    try:
        found = list(_candidates(case))
    except SparseTableError as error:
        return Examination(_abstain(str(error), counts), None)
    if not (table.kind == Kind.COMPUTE).any() and not found:
        why = "no compute is recorded, such as the phases forward and backward"
        return Examination(_abstain(why, counts), case)
    return Examination(_verdict(case, found, counts), case)


def _candidates(case: Case) -> Iterator[Candidate]:
    """Yield every cause that passes its test."""
    visits, difficulty = case.visits, case.difficulty
    ranks: list[Candidate] = []
    if visits is not None and difficulty is not None:
        ranks, slowness = find_slow_ranks(case, visits, difficulty)
        yield from ranks
        yield from find_suspected_ranks(case, slowness)
        if ranks and ranks[0].cause is Cause.SLOW_RANK:  # what else there is shows without them
            visits = without(visits, slowness)
            difficulty = separate(visits)
        jitter = find_jitter(case, visits, difficulty, slowness)
        unequal = find_unequal_batches(case, visits, difficulty)
        replica = find_slow_replicas(case, visits, difficulty)
        yield from (each for each in (replica, unequal, jitter) if each is not None)
    yield from (each for each in find_slow_stages(case) if not _are_its_ranks(case, each, ranks))
    yield from find_slow_host_work(case)
    links = measure_links(case)
    others = (
        links and find_network(case, links),
        find_slow_host_work_of_stages(case),
        find_slow_data_loading(case),
        links and find_exposed_transfers(case, links),
    )
    yield from filter(None, others)


def _are_its_ranks(case: Case, stage: Candidate, ranks: list[Candidate]) -> bool:
    """Return True if most ranks of a heavy stage are slow ranks, which at times are so at once by chance."""
    if not stage.stages:
        return False
    members = case.ranks[case.stage_of_rank == stage.stages[0]].tolist()
    slow = {rank for each in ranks for rank in each.ranks}
    return 2 * len(slow.intersection(members)) > len(members)


def _verdict(case: Case, found: list[Candidate], counts: Mapping[str, object]) -> Verdict:
    """Return a verdict of the first of the causes, unless none of them costs enough."""
    priced = [
        each
        for each in price(case, found)
        # A rank that is only suspected, and would gain the run nothing worth a look, is left out.
        if each.cause is not Cause.SLOW_RANK or each.certain or each.slowdown >= case.limits.least_slowdown
    ]
    overall = overall_slowdown(case)
    facts = {
        **counts,
        "step_seconds": float(np.median(case.step_seconds)),
        "replayed_ratio": case.replayed_ratio(),
        "slowdown_by_operation": overall.by_operation,
    }
    chosen = _choose(priced, case.limits)
    firm = chosen is not None and not chosen.last_resort
    causes = []
    # What has only an upper bound as its cost comes behind what has a cost.
    for each in sorted(priced, key=lambda each: (each is not chosen, firm and each.last_resort)):
        if firm and each.last_resort:
            bound = {**each.evidence, "slowdown_at_most": each.slowdown}
            each = replace(each, evidence=bound, slowdown=math.nan)
        causes.append(found_cause(case, each))
    verdict = Verdict(
        cause=Cause.NONE, causes=tuple(causes), slowdown_if_all_fixed=overall.ratio, evidence=facts
    )
    if chosen is None:
        return verdict
    first = causes[0]
    return replace(
        verdict,
        cause=first.cause,
        phase=first.phase,
        ranks=first.ranks,
        stages=first.stages,
        first_step=first.first_step,
        slowdown=chosen.slowdown,
        lost_rank_seconds=first.lost_rank_seconds or 0.0,
        evidence={**facts, **first.evidence},
    )


def _choose(priced: Sequence[Candidate], limits: Thresholds) -> Candidate | None:
    """Return the cause that is the verdict: the costliest; but what is proved goes before what is suspected,
    and a rank that can be replaced today before what needs planning.

    Where ranks are late in turn, a few late steps of one rank in a row are a turn like the others.
    """
    eligible = _eligible([each for each in priced if each.certain], limits.least_slowdown)
    if not eligible:
        return None
    worst = max(eligible, key=_by_cost)
    proved = [each for each in eligible if each.proved]
    if not worst.last_resort:
        enough = 1.0 + _SHARE_OF_SUSPECTED * (worst.slowdown - 1.0)
        worst = max((each for each in proved if each.slowdown >= enough), key=_by_cost, default=worst)
    turn = worst.cause is Cause.JITTER
    if turn:
        # A stage that is slow now and then makes its ranks late in turn, too.
        same = 1.0 + _SAME_TIME * (worst.slowdown - 1.0)
        named = (each for each in proved if (each.ranks or each.stages) and each.slowdown >= same)
        worst = max(named, key=_by_cost, default=worst)
        turn = worst.cause is Cause.JITTER
    least = 1.0 + min(limits.least_slowdown - 1.0, _SHARE_OF_WORST * (worst.slowdown - 1.0))
    ranks = [each for each in eligible if each.is_slow_compute and each.slowdown >= least]
    lasting = (each for each in ranks if not (turn and each.lasts < _TURN * limits.steps))
    return max(lasting, key=_by_cost, default=worst)


def _eligible(priced: Sequence[Candidate], least_slowdown: float) -> list[Candidate]:
    """Return causes that may be the verdict: last resorts only alone, or as data loading far beyond the rest.

    A run never exists to wait for data, whereas it has to transfer.
    """
    last = [each for each in priced if each.last_resort]
    firm = [
        each
        for each in priced
        if not each.last_resort and (each.is_slow_compute or each.slowdown >= least_slowdown)
    ]
    rest = max((each.slowdown for each in firm if not each.is_slow_compute), default=1.0)
    loading = [
        each
        for each in last
        if each.cause is Cause.DATA_LOADING and rest - 1.0 < _SHARE_OF_WORST * (each.slowdown - 1.0)
    ]
    return firm + loading if firm else last


def _abstain(why: str, counts: Mapping[str, object] | None = None) -> Verdict:
    return Verdict(cause=Cause.INCONCLUSIVE, evidence={**(counts or {}), "why": why})


class Events(NamedTuple):
    """The single events of a table."""

    listed: tuple[Mapping[str, object], ...]
    """The worst first; ready for JSON."""
    lost_seconds: float
    """Of all of them, those that are not listed included."""
    rows: Bools
    """By row of the table: it belongs to the step of an event."""


def find_events(table: OperationTable) -> Events:
    """Return steps that took far longer than the usual ones, and what took their time."""
    step, steps, _, ranks, _ = table.cells
    first, last = table.spans()
    spans = np.where(np.isfinite(first), last - first, 0.0).max(axis=1, initial=0.0)
    odd = np.array(outlying(spans.tolist()), dtype=np.bool_)
    if not odd.any():
        return Events((), 0.0, np.zeros(len(table), dtype=np.bool_))
    excess = _excess(table, odd)
    communicates = np.isin(
        np.arange(len(table.operations)), table.operation[table.kind == Kind.COMMUNICATION]
    )
    found: list[tuple[float, dict[str, object]]] = []
    for at, lost in _lost(first, last, spans, odd).items():
        by_rank = excess[np.count_nonzero(odd[:at])]
        # It lost its time in the own work of ranks, or else in a transfer for which nobody came late. Where
        # both are short, the ranks here waited for one that is not in the table.
        own = np.where(communicates, 0.0, by_rank)
        late = np.flatnonzero(own.sum(axis=1) >= _MOST_OF_LOST * lost)
        which = own[late].sum(axis=0) if late.size else by_rank.min(axis=0)
        if not late.size and not which.max() >= _MOST_OF_LOST * lost:
            which = by_rank.sum(axis=0)
        event = {
            "step": int(steps[at]),
            "lost_seconds": lost,
            "step_seconds": float(spans[at]),
            "operation": table.operations[int(np.argmax(which))],
            "ranks": ranks[late].tolist(),
        }
        if event["operation"] not in SECTIONS:
            found.append((lost, event))
    found.sort(key=lambda each: -each[0])
    listed = tuple(event for _, event in found[:MOST_EVENTS])
    return Events(listed, sum(lost for lost, _ in found), odd[step])


def _excess(table: OperationTable, odd: Bools) -> Floats:
    """Return (event, rank, operation): seconds in the odd steps, beyond those of a mean other step."""
    step, _, rank, ranks, _ = table.cells
    operation = table.operation.astype(np.int64)
    shape = (len(ranks), len(table.operations))
    rows, others = np.flatnonzero(odd[step]), np.flatnonzero(~odd[step])
    count = int(np.count_nonzero(odd))
    event = (np.cumsum(odd) - 1)[step[rows]]
    cells = Groups.grid((event, count), (rank[rows], shape[0]), (operation[rows], shape[1]))
    taken = cells.sum(table.duration_seconds[rows]).reshape(count, *shape)
    usual = Groups.grid((rank[others], shape[0]), (operation[others], shape[1]))
    mean: Floats = usual.sum(table.duration_seconds[others]) / max(1, len(odd) - count)
    return taken - mean.reshape(shape)


def _lost(first: Floats, last: Floats, spans: Floats, odd: Bools) -> dict[int, float]:
    """Return seconds that each odd step lost beyond the one before it, without those that lost hardly any.

    Where a rank pauses at the end of a step, its peers wait for it in the next one: both are long, and on
    each rank one. first, last: (step, rank), when it began and ended on the rank's clock.
    """
    usual = float(np.median(spans[~odd]))
    found: dict[int, float] = {}
    for at in np.flatnonzero(odd).tolist():
        lost = alone = float(spans[at]) - usual
        if at - 1 in found:
            both = np.where(np.isfinite(first[at - 1]) & np.isfinite(last[at]), last[at] - first[at - 1], 0.0)
            lost = min(alone, float(both.max()) - 2.0 * usual - found[at - 1])
        if lost >= _MOST_OF_LOST * alone:
            found[at] = lost
    return found
