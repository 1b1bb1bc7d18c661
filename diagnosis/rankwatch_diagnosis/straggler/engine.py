"""From a table of operations to a verdict: the cause first, then the rank or stage, and what it costs.

Single steps that take far longer than the usual ones are reported as events. What follows looks at the other
steps only, because a cause of a slowdown is what goes on.

Each test of a cause returns a candidate with the durations that the run would have without it. The replay of
these durations gives the price, and the costliest candidate is the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.causes.host_work import (
    find_slow_data_loading,
    find_slow_host_work,
    find_slow_host_work_of_stages,
)
from rankwatch_diagnosis.straggler.causes.jitter import find_jitter
from rankwatch_diagnosis.straggler.causes.network import find_exposed_transfers, find_network
from rankwatch_diagnosis.straggler.causes.slow_ranks import find_slow_ranks, find_slow_replicas
from rankwatch_diagnosis.straggler.causes.slow_stages import find_slow_stages
from rankwatch_diagnosis.straggler.causes.unequal_batches import find_unequal_batches
from rankwatch_diagnosis.straggler.difficulty import separate
from rankwatch_diagnosis.straggler.events import find_events
from rankwatch_diagnosis.straggler.graph.pipeline import with_stages
from rankwatch_diagnosis.straggler.graph.replay import slowdown
from rankwatch_diagnosis.straggler.thresholds import DEFAULT, Thresholds
from rankwatch_diagnosis.straggler.verdict import Verdict
from rankwatch_diagnosis.straggler.visits import SparseTableError, measure_visits

_LEAST_RANKS = 2
_SHARE_OF_WORST = 0.25
"""A slow rank goes first where it costs this part of what the costliest cause does, or 1 % of the run."""
_TURN = 2
"""Shortest windows that a slow rank must last where ranks are late in turn and that costs more."""


def diagnose(table: OperationTable) -> Verdict:
    """What slows the run down. Of several causes the one that costs most; the others are in the evidence."""
    if len(table) == 0:
        return _abstain("no operation of a complete step is recorded")
    events = find_events(table)
    usual = table.take(~events.rows) if events.rows.any() else table
    trend = _judge_trend(usual)
    first = trend.first_step
    if first == usual.step.min():  # what is there after a first, odd step was there before
        first = int(table.step.min())
    return replace(trend, first_step=first, events=events.listed, event_seconds=events.lost_seconds)


def _judge_trend(table: OperationTable) -> Verdict:
    steps, ranks = len(np.unique(table.step)), len(np.unique(table.rank))
    counts = {"steps": steps, "ranks": ranks, "operations": len(table)}
    if steps < DEFAULT.steps:
        return _abstain(
            f"only {steps} of the {DEFAULT.steps} steps that a verdict needs are recorded", counts
        )
    if ranks < _LEAST_RANKS:
        return _abstain("a single rank has no peer to compare it with", counts)
    case = Case(with_stages(table), DEFAULT)
    try:
        found = list(_candidates(case))
    except SparseTableError as error:
        return _abstain(str(error), counts)
    if not (table.kind == Kind.COMPUTE).any() and not found:
        return _abstain("no compute is recorded, such as the phases forward and backward", counts)
    return _choose(case, found, counts)


def _candidates(case: Case) -> Iterator[Candidate]:
    """Every cause that passes its test."""
    visits = measure_visits(case.table, least_steps=case.limits.steps)
    if visits is not None:
        difficulty = separate(visits)
        slow_rank, slow_ranks = find_slow_ranks(case, visits, difficulty)
        jitter = find_jitter(case, visits, difficulty, slow_ranks)
        unequal = find_unequal_batches(case, visits, difficulty)
        replica = find_slow_replicas(case, visits, difficulty)
        yield from (each for each in (slow_rank, replica, unequal, jitter) if each is not None)
    tests = (
        find_slow_stages,
        find_network,
        find_slow_host_work,
        find_slow_host_work_of_stages,
        find_slow_data_loading,
        find_exposed_transfers,
    )
    yield from (each for test in tests if (each := test(case)) is not None)


def _choose(case: Case, found: list[Candidate], counts: Mapping[str, object]) -> Verdict:
    measured = case.step_seconds
    priced = [(slowdown(measured, case.replay.step_seconds(each.ideal)), each) for each in found]
    eligible = _eligible(priced, case.limits.least_slowdown)
    facts = {**counts, "step_seconds": float(np.median(measured)), "replayed_ratio": case.replayed_ratio()}
    if not eligible:
        return Verdict(cause=Cause.NONE, evidence=facts)
    cost, chosen = _worst(eligible, case.limits)
    others = [
        {
            "cause": each.cause.value,
            "phase": each.phase and each.phase.value,
            "slowdown": price,
            "ranks": list(each.ranks),
            **each.evidence,
        }
        for price, each in priced
        if each is not chosen
    ]
    ideal = float(measured.sum()) / cost
    return Verdict(
        cause=chosen.cause,
        phase=chosen.phase,
        ranks=chosen.ranks,
        stages=chosen.stages,
        first_step=chosen.first_step,
        slowdown=cost,
        lost_rank_seconds=(float(measured.sum()) - ideal) * len(case.ranks),
        evidence={**facts, **chosen.evidence, **({"also_seen": others} if others else {})},
    )


def _eligible(priced: list[tuple[float, Candidate]], least_slowdown: float) -> list[tuple[float, Candidate]]:
    """Candidates that may be the verdict: last resorts only alone, or as data loading far beyond the rest.

    A run never exists to wait for data, whereas it has to transfer.
    """
    last = [pair for pair in priced if pair[1].last_resort]
    firm = [
        pair
        for pair in priced
        if not pair[1].last_resort and (_computes_slowly(pair[1]) or pair[0] >= least_slowdown)
    ]
    rest = max((cost for cost, each in firm if not _computes_slowly(each)), default=1.0)
    loading = [
        (cost, each)
        for cost, each in last
        if each.cause is Cause.DATA_LOADING and rest - 1.0 < _SHARE_OF_WORST * (cost - 1.0)
    ]
    return firm + loading if firm else last


def _worst(eligible: list[tuple[float, Candidate]], limits: Thresholds) -> tuple[float, Candidate]:
    """The costliest; but a rank that can be replaced today goes before what needs planning.

    Where ranks are late in turn, a few late steps of one rank in a row are a turn like the others.
    """
    worst = max(eligible, key=lambda pair: pair[0])
    turn = worst[1].cause is Cause.JITTER
    ranks = [
        pair
        for pair in eligible
        if _computes_slowly(pair[1]) and not (turn and pair[1].lasts < _TURN * limits.steps)
    ]
    least_slowdown = limits.least_slowdown
    if ranks and ranks[0][0] - 1.0 >= min(least_slowdown - 1.0, _SHARE_OF_WORST * (worst[0] - 1.0)):
        return ranks[0]
    return worst


def _computes_slowly(candidate: Candidate) -> bool:
    return candidate.phase is SlowPhase.COMPUTE


def _abstain(why: str, counts: Mapping[str, object] | None = None) -> Verdict:
    return Verdict(cause=Cause.INCONCLUSIVE, evidence={**(counts or {}), "why": why})
