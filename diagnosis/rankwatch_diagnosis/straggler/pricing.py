"""From candidates to causes with their price: what the run would take without each of them alone.

Slow ranks that slow down together are one cause, such as the ranks of a node that throttles: alone, each of
them costs nothing, because the others are as late. Ranks whose steps or whose excess differ are causes of
their own.

What the job would gain if every operation took what is usual for its type is S of arXiv 2505.05713:

    S = seconds of all steps / seconds of all steps with each type of operation at one value

Compute and host work take the mean of their type over all ranks, stages, microbatches and steps, so that the
work stays the same and only its spread goes; a transfer takes the median of its type, without waits. Pauses
between operations belong to no type, so both sides are replayed without them. S names nobody: it holds what a
cause costs, and also unequal stages, unequal batches and noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.groups import Groups
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case, Ideal
from rankwatch_diagnosis.straggler.graph.replay import slowdown
from rankwatch_diagnosis.straggler.verdict import FoundCause

_MOST_PRICED = 48
"""A replay each. A slow node has 8 or 16 ranks, and these are one cause."""
_LEAST_PRICED = 12
_MOST_ROWS = 32_000_000
"""Of all these replays together: about 3 seconds."""
_ALIKE = 1.5
"""Excess of one rank over that of another up to which they may have one cause."""
_ALIKE_SHARE = 0.03
"""The same as a difference of shares: healthy accelerators differ by as much (1 to 3 %)."""
_STANDARD_ERRORS = 3.0
"""By which two ranks must differ at least to be two causes."""
_EDGE_ERRORS = 10.0
"""Times (noise / size)^2 steps: 99 % of the estimates of a change of level lie within (Hinkley, 1970)."""
_LEAST_GAIN, _LEAST_GAIN_OF_HOST = 1.002, 1.0005
"""Slowdown below which a rank that is a little slow, or whose host works longer, is suspected only."""
_MOSTLY, _SELDOM = 0.8, 0.3
"""Share of the steps in which it is slow all the time, or now and then."""
_SPREADS = 5.0
"""A little slow all the time: so many standard deviations of the healthy ranks of its job."""
_LITTLE = 0.04
"""A little slow now and then: noise gives no more."""
_MOST_LISTED = 64
"""Entries of one list in the evidence."""
_MOST_REPLAYED = 8
"""Types of operation, those that differ most from their usual seconds."""
_LEAST_LISTED = 1.005


def price(case: Case, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the causes with what each alone costs, the highest first; those beyond a bound, unpriced, last.

    Their `active` is known. Those of which there are few are priced first, then the ranks that lose most.
    """
    joined = _join(case, [replace(each, active=case.active(each)) for each in candidates])
    joined.sort(key=lambda each: (each.cause is Cause.SLOW_RANK, -np.subtract(*case.own_seconds(each))))
    most = min(_MOST_PRICED, max(_LEAST_PRICED, _MOST_ROWS // len(case.seconds)))
    found = []
    for number, each in enumerate(joined):
        cost = slowdown(case.step_seconds, case.seconds_without(each)) if number < most else math.nan
        doubtful = each.cause is Cause.SLOW_RANK and _gains_nothing(case, each, cost)
        found.append(replace(each, slowdown=cost, certain=each.certain and not doubtful))
    return sorted(
        found, key=lambda each: -math.inf if math.isnan(each.slowdown) else each.slowdown, reverse=True
    )


def found_cause(case: Case, each: Candidate) -> FoundCause:
    """Return what the verdict lists of a cause."""
    at_work = case.active(each)
    active = np.flatnonzero(at_work)
    total, priced = float(case.step_seconds.sum()), math.isfinite(each.slowdown)
    return FoundCause(
        cause=each.cause,
        phase=each.phase,
        ranks=each.ranks,
        stages=each.stages,
        first_step=int(case.steps[active[0]]) if active.size else each.first_step,
        last_step=int(case.steps[active[-1]]) if active.size else each.first_step,
        share_of_steps=float(at_work.mean()),
        slowdown=each.slowdown if priced else None,
        lost_rank_seconds=(total - total / each.slowdown) * len(case.ranks) if priced else None,
        evidence=each.evidence,
        certain=each.proved,
    )


def _gains_nothing(case: Case, candidate: Candidate, cost: float) -> bool:
    """Return True of a rank without whose lateness the run would take as long.

    Host work may be a wait that nobody recorded. Of many healthy accelerators one is a little slower all the
    time, and now and then one is for some steps.
    """
    if candidate.phase is not SlowPhase.COMPUTE:
        return cost < _LEAST_GAIN_OF_HOST
    taken, ideal = case.own_seconds(candidate)
    excess = taken / max(ideal, 1e-18) - 1.0
    share = float(case.active(candidate).mean())
    by_nature = share >= _MOSTLY and excess < _SPREADS * candidate.healthy_spread
    by_chance = share < _SELDOM and excess < _LITTLE
    return (by_nature or by_chance) and cost < _LEAST_GAIN


class _SlowRank(NamedTuple):
    """What tells whether two slow ranks have one cause."""

    candidate: Candidate
    size: float
    """Excess over its own time without the cause."""
    error: float
    """Standard error of the size."""
    first: int
    """Index of the first step in which it is at work."""
    last: int
    edge_error: float
    """Steps by which both may be off."""


def _join(case: Case, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Join slow ranks that belong together into one candidate each; all others and suspects stand alone."""
    ranks, others = [], []
    for each in candidates:
        if each.cause is Cause.SLOW_RANK and each.certain:
            ranks.append(_slow_rank(case, each))
        else:
            others.append(each)
    groups: list[list[_SlowRank]] = []
    for rank in sorted(ranks, key=lambda rank: -rank.size):
        alike = next((group for group in groups if _belong_together(group[0], rank, case)), None)
        if alike is None:
            groups.append([rank])
        else:
            alike.append(rank)
    return others + [_as_one([each.candidate for each in group]) for group in groups]


def _slow_rank(case: Case, candidate: Candidate) -> _SlowRank:
    taken, ideal = case.own_seconds(candidate)
    active = np.flatnonzero(case.active(candidate))
    size = taken / max(ideal, 1e-18) - 1.0
    return _SlowRank(
        candidate,
        size,
        error=size * candidate.noise_to_size / math.sqrt(max(active.size, 1)),
        first=int(active[0]) if active.size else 0,
        last=int(active[-1]) if active.size else 0,
        edge_error=_EDGE_ERRORS * candidate.noise_to_size**2,
    )


def _belong_together(one: _SlowRank, other: _SlowRank, case: Case) -> bool:
    """Return True if two slow ranks may have one cause: same phase, same steps, about the same excess."""
    if one.candidate.phase is not other.candidate.phase:
        return False
    largest = max(one.size, other.size)
    chance = _STANDARD_ERRORS * math.hypot(one.error, other.error)
    if abs(one.size - other.size) > max(largest - largest / _ALIKE, _ALIKE_SHARE, chance):
        return False
    steps = case.limits.steps + one.edge_error + other.edge_error
    return abs(one.first - other.first) <= steps and abs(one.last - other.last) <= steps


def _as_one(group: Sequence[Candidate]) -> Candidate:
    """Join lists in the evidence, up to a bound; take the first of everything else in it."""
    if len(group) == 1:
        return group[0]
    merged: dict[str, object] = {}
    for each in sorted(group, key=lambda each: each.ranks):
        for name, value in each.evidence.items():
            before = merged.setdefault(name, value)
            if before is not value and isinstance(before, list) and isinstance(value, list):
                merged[name] = (before + [entry for entry in value if entry not in before])[:_MOST_LISTED]
    return replace(
        group[0],
        ideal=Ideal(*map(np.concatenate, zip(*(each.ideal for each in group), strict=True))),
        first_step=min(each.first_step for each in group),
        ranks=tuple(sorted({rank for each in group for rank in each.ranks})),
        active=np.logical_or.reduce([each.active for each in group if each.active is not None]),
        evidence=merged,
        lasts=max(each.lasts for each in group),
    )


class OverallSlowdown(NamedTuple):
    """S of a job, and the types of operation that hold it."""

    ratio: float | None
    """None for a table without any time."""
    by_operation: dict[str, float]
    """The same with only this type as recorded and all others at their usual seconds, the highest first."""


def overall_slowdown(case: Case) -> OverallSlowdown:
    """Return the slowdown of the job against one in which nothing differs."""
    types = Groups.by(case.table.operation, case.table.kind)
    median, mean = types.median(case.seconds)[types.number], types.mean(case.seconds)[types.number]
    usual = np.where(case.table.kind == Kind.COMMUNICATION, median, mean)
    pauses = np.zeros(len(usual))
    ideal = case.replay.step_seconds(usual, pauses)
    if not ideal.sum() > 0.0:
        return OverallSlowdown(None, {})
    differs = types.sum(np.abs(case.seconds - usual))
    held = {}
    for index in np.argsort(-differs, kind="stable")[:_MOST_REPLAYED].tolist():
        recorded = np.where(types.number == index, case.seconds, usual)
        cost = slowdown(case.replay.step_seconds(recorded, pauses), ideal)
        if cost >= _LEAST_LISTED:
            operation = case.table.operation[int(np.argmax(types.number == index))]
            held[case.table.operations[operation]] = cost
    measured = case.replay.step_seconds(case.seconds, pauses)
    return OverallSlowdown(slowdown(measured, ideal), dict(sorted(held.items(), key=lambda each: -each[1])))
