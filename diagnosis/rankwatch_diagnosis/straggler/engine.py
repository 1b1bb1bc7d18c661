"""From a table of operations to a verdict: first the cause, then the name, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.causes.host import find_host, find_starvation
from rankwatch_diagnosis.straggler.causes.host_stages import find_host_of_stages
from rankwatch_diagnosis.straggler.causes.imbalance import find_imbalance
from rankwatch_diagnosis.straggler.causes.jitter import find_jitter
from rankwatch_diagnosis.straggler.causes.network import find_exposed_transfers, find_network
from rankwatch_diagnosis.straggler.causes.replicas import find_slow_replicas
from rankwatch_diagnosis.straggler.causes.stages import find_stages
from rankwatch_diagnosis.straggler.causes.workers import find_workers
from rankwatch_diagnosis.straggler.difficulty import Difficulty, separate
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.graph.replay import slowdown
from rankwatch_diagnosis.straggler.graph.roles import with_stages
from rankwatch_diagnosis.straggler.thresholds import DEFAULT, Thresholds
from rankwatch_diagnosis.straggler.units import SparseTableError, measure
from rankwatch_diagnosis.straggler.verdict import Verdict

_LEAST_RANKS = 2
_SHARE_OF_WORST = 0.25
"""A slow rank is told first where it costs this part of what the costliest cause does, or 1 % of the run."""
_TURN = 2
"""Shortest windows that a slow rank must last where ranks are late in turn and this costs more."""


def diagnose(table: OperationTable, *, limits: Thresholds = DEFAULT) -> Verdict:
    """What slows the run down. Of several causes the one that costs most; the others are in the evidence."""
    if len(table) == 0:
        return _abstain("the table is empty")
    steps, ranks = len(np.unique(table.step)), len(np.unique(table.rank))
    seen = {"steps": steps, "ranks": ranks, "operations": len(table)}
    if steps < limits.steps:
        return _abstain(f"the table holds {steps} steps, a verdict needs {limits.steps}", seen)
    if ranks < _LEAST_RANKS:
        return _abstain("the table holds one rank, and nobody to compare it with", seen)
    case = Case(with_stages(table), limits)
    try:
        found = list(_findings(case))
    except SparseTableError as error:
        return _abstain(str(error), seen)
    if not (table.kind == Kind.COMPUTE).any() and not found:
        return _abstain("the table holds no compute operations", seen)
    return _choose(case, found, seen)


def _findings(case: Case) -> Iterator[Finding]:
    """Every cause that passes its test."""
    units = measure(case.table, least_steps=case.limits.steps)
    if units is not None:
        difficulty: Difficulty = separate(units)
        worker, workers = find_workers(case, units, difficulty)
        jitter = find_jitter(case, units, difficulty, workers)
        imbalance = find_imbalance(case, units, difficulty)
        replica = find_slow_replicas(case, units, difficulty)
        yield from (each for each in (worker, replica, imbalance, jitter) if each is not None)
    tests = (
        find_stages,
        find_network,
        find_host,
        find_host_of_stages,
        find_starvation,
        find_exposed_transfers,
    )
    yield from (each for test in tests if (each := test(case)) is not None)


def _choose(case: Case, found: list[Finding], seen: Mapping[str, object]) -> Verdict:
    measured = case.step_seconds
    priced = [(slowdown(measured, case.replay.step_seconds(each.ideal)), each) for each in found]
    candidates = _candidates(priced, case.limits.least_slowdown)
    facts = {**seen, "step_seconds": float(np.median(measured)), "replayed_ratio": case.replayed_ratio()}
    if not candidates:
        return Verdict(cause=Cause.NONE, evidence=facts)
    cost, chosen = _worst(candidates, case.limits)
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


def _worst(candidates: list[tuple[float, Finding]], limits: Thresholds) -> tuple[float, Finding]:
    """The costliest; but a rank that one can replace today goes before what only a planner can mend.

    Where ranks are late in turn, a few late steps of one in a row are a turn like the others.
    """
    worst = max(candidates, key=lambda pair: pair[0])
    turn = worst[1].cause is Cause.JITTER
    ranks = [
        pair
        for pair in candidates
        if pair[1].phase is SlowPhase.COMPUTE and not (turn and pair[1].lasts < _TURN * limits.steps)
    ]
    least_slowdown = limits.least_slowdown
    if ranks and ranks[0][0] - 1.0 >= min(least_slowdown - 1.0, _SHARE_OF_WORST * (worst[0] - 1.0)):
        return ranks[0]
    return worst


def _candidates(priced: list[tuple[float, Finding]], least_slowdown: float) -> list[tuple[float, Finding]]:
    """What may be the verdict: the last resorts where nothing else is, and starvation far beyond the rest.

    Waiting for data is never what a run is for, as transfers are.
    """
    last = [pair for pair in priced if pair[1].last_resort]
    firm = [
        pair
        for pair in priced
        if not pair[1].last_resort and (pair[1].phase is SlowPhase.COMPUTE or pair[0] >= least_slowdown)
    ]
    rest = max((cost for cost, each in firm if each.phase is not SlowPhase.COMPUTE), default=1.0)
    starved = [
        (cost, each)
        for cost, each in last
        if each.cause is Cause.DATA_LOADING and rest - 1.0 < _SHARE_OF_WORST * (cost - 1.0)
    ]
    return firm + starved if firm else last


def _abstain(why: str, seen: Mapping[str, object] | None = None) -> Verdict:
    return Verdict(cause=Cause.INCONCLUSIVE, evidence={**(seen or {}), "why": why})
