"""Replicas of which every rank is slow: as well their microbatches may be long, so nobody is named."""

from __future__ import annotations

import math

import numpy as np

from rankwatch.conventions import Cause
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes, nan_mean, nan_median
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.peers import against_peers
from rankwatch_diagnosis.straggler.persistence import Lasting, scan
from rankwatch_diagnosis.straggler.units import Units

_MOST_TOLD = 64


def find_slow_replicas(case: Case, units: Units, difficulty: Difficulty) -> Finding | None:
    """Replicas whose fastest rank lasts above that of the others; None where work units tell more."""
    replicas, replica = codes(units.replica)
    if not difficulty.mates or units.work_known or len(replicas) < case.limits.peers:
        return None
    fastest = _fastest(units, replica, len(replicas))
    residuals = against_peers(fastest, np.zeros(len(replicas), dtype=np.int64), case.limits.peers)
    found = scan(
        residuals,
        case.limits,
        least_excess=math.log(case.limits.worker_ratio),
        least_spread=case.limits.healthy_spread,
    ).found
    if not found:
        return None
    return Finding(
        cause=Cause.INCONCLUSIVE,
        ideal=_ideal(case, units, replica, found),
        first_step=int(units.steps[min(each.first for each in found)]),
        evidence={
            "suspected_replicas": [
                _told(each, int(replicas[each.column]), units.ranks[replica == each.column])
                for each in found[:_MOST_TOLD]
            ],
            "why": "all ranks of a replica are slow, and they share their microbatches",
        },
    )


def _fastest(units: Units, replica: Ints, replicas: int) -> Floats:
    """(step, replica): the lowest mean logarithm of its ranks; NaN for a replica of one rank."""
    visits = units.visits
    own = nan_mean(visits - nan_median(visits.reshape(len(visits), -1), axis=1)[:, None, None], axis=2)
    fastest = np.full((replicas, len(own)), np.inf)
    np.minimum.at(fastest, replica, np.where(np.isfinite(own), own, np.inf).T)
    fastest[np.bincount(replica) < 2] = np.inf
    lowest: Floats = np.where(np.isinf(fastest), np.nan, fastest).T
    return lowest


def _ideal(case: Case, units: Units, replica: Ints, found: tuple[Lasting, ...]) -> Floats:
    ideal = case.seconds.copy()
    for each in found:
        ranks = units.ranks[replica == each.column]
        rows = (case.table.kind == Kind.COMPUTE) & np.isin(case.table.rank, ranks)
        rows &= np.isin(case.table.step, units.steps[each.first : each.end])
        ideal[rows] *= math.exp(-each.excess)
    return ideal


def _told(each: Lasting, replica: int, ranks: Ints) -> dict[str, object]:
    return {
        "replica": replica,
        "ranks": ranks[:_MOST_TOLD].tolist(),
        "slower_by_ratio": math.expm1(each.excess),
        "score": each.score,
    }
