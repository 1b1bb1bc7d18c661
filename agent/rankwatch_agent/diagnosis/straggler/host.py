"""Data loading and other work of the host: on some ranks more than on their peers, or too much on all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rankwatch_agent.diagnosis.operations.table import Kind
from rankwatch_agent.diagnosis.straggler.arrays import Floats, Ints, grouped_median, nan_median
from rankwatch_agent.diagnosis.straggler.finding import Case, Finding
from rankwatch_agent.diagnosis.straggler.peers import against_peers
from rankwatch_agent.diagnosis.straggler.persistence import Lasting, scan
from rankwatch_agent.diagnosis.straggler.verdict import Cause

_KINDS = (Kind.DATA, Kind.OTHER)
_LEAST_SHARE_OF_OWN = 0.5
"""Part of a stage's host work that must be excess: it takes at least twice what it takes elsewhere."""


def find_host(case: Case) -> Finding | None:
    """Ranks whose host work lasts above that of their stage; None where there is none."""
    return _find(case, _peers, 0.0)


def find_host_of_stages(case: Case) -> Finding | None:
    """Host work of a whole stage, at least twice what it takes elsewhere.

    It costs the run, but stages may differ by design, and a stage has no peers: no rank is named.
    """
    found = _find(case, _everyone, _LEAST_SHARE_OF_OWN)
    if found is None:
        return None
    slow = np.isin(case.ranks, found.ranks)
    stage = _stages(case)
    whole = [each for each in np.unique(stage[slow]) if slow[stage == each].all()]
    if not whole or len(whole) == len(np.unique(stage)):
        return None
    evidence = {**found.evidence, "stages": [int(each) for each in whole]}
    return replace(found, ranks=(), evidence=evidence)


def _find(case: Case, peers: Callable[[Case, Floats], Ints], least_share_of_own: float) -> Finding | None:
    step_seconds = float(np.median(case.step_seconds))
    if step_seconds <= 0.0:
        return None
    ideal = case.seconds.copy()
    told: list[dict[str, object]] = []
    first = len(case.steps)
    for kind in _KINDS:
        rows = case.table.kind == kind
        if not rows.any():
            continue
        total = case.sums(rows)
        residual = against_peers(total / step_seconds, peers(case, total), case.limits.peers)
        for each in scan(residual, case.limits, least_excess=case.limits.host_share).found:
            own = float(nan_median(total[each.first : each.end, each.column]))
            if each.excess * step_seconds < least_share_of_own * own:
                continue
            inside = rows & (case.rank == each.column) & (case.step >= each.first) & (case.step < each.end)
            ideal[inside] *= max(0.0, 1.0 - each.excess * step_seconds / max(own, 1e-12))
            first = min(first, each.first)
            told.append(_told(case, kind, own, each, step_seconds))
    if not told:
        return None
    return Finding(
        cause=Cause.HOST,
        ideal=ideal,
        first_step=int(case.steps[first]),
        ranks=tuple(sorted({int(str(each["rank"])) for each in told})),
        evidence={"host_work": told[:64]},
    )


def find_starvation(case: Case) -> Finding | None:
    """Whole stages or the whole job wait long for data: nobody to compare with, so the cost is a bound."""
    rows = case.table.kind == Kind.DATA
    if not rows.any():
        return None
    ideal = np.where(rows, 0.0, case.seconds)
    measured = float(case.step_seconds.sum())
    share = 1.0 - float(case.replay.step_seconds(ideal).sum()) / measured if measured > 0.0 else 0.0
    if share < case.limits.starvation_share:
        return None
    return Finding(
        cause=Cause.HOST,
        ideal=ideal,
        first_step=int(case.steps[0]),
        evidence={"data_share_of_step": share, "slowdown_is_upper_bound": True},
        last_resort=True,
    )


def _peers(case: Case, total: Floats) -> Ints:
    """By rank: whom it is compared with. Where a stage is too small, all ranks that do this work."""
    stage = _stages(case)
    active = np.isfinite(total).any(axis=0)
    sizes = np.unique(stage[active], return_counts=True)[1]
    if sizes.size and int(sizes.min()) < case.limits.peers:
        return _everyone(case, total)
    return stage


def _everyone(case: Case, _: Floats) -> Ints:
    return np.zeros(len(case.ranks), dtype=np.int64)


def _stages(case: Case) -> Ints:
    """By rank: the stage of most of its rows."""
    stages = grouped_median(case.table.stage.astype(np.float64), case.rank, len(case.ranks))
    return np.rint(stages).astype(np.int64)


def _told(case: Case, kind: Kind, own: float, each: Lasting, step_seconds: float) -> dict[str, object]:
    return {
        "rank": int(case.ranks[each.column]),
        "kind": kind.name.lower(),
        "seconds_per_step": own,
        "excess_share_of_step": each.excess,
        "excess_seconds_per_step": each.excess * step_seconds,
        "first_step": int(case.steps[each.first]),
    }
