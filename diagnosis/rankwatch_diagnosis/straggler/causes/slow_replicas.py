"""Replicas that are slow as a whole.

Their microbatches may as well be long, so no rank is named.
"""

from __future__ import annotations

import math

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.groups import Floats, Ints, factorize
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.persistence import Excess, against_peers, noise_of, scan
from rankwatch_diagnosis.straggler.robust import nan_mean, nan_median
from rankwatch_diagnosis.straggler.spread import bounds
from rankwatch_diagnosis.straggler.visits import Visits

WHY = "all ranks of a replica are slow, and they share their microbatches"
_MOST_LISTED = 64
"""Replicas or ranks in the evidence."""


def find_slow_replicas(case: Case, visits: Visits, difficulty: Difficulty) -> Candidate | None:
    """Replicas whose fastest rank lies above that of the others for long; None where work units are known.

    Their microbatches may as well be long, so no rank is named.
    """
    replica, replicas = factorize(visits.replica)
    if not difficulty.across_ranks or visits.work_known or len(replicas) < case.limits.peers:
        return None
    fastest = _fastest(visits, replica, len(replicas))
    one_stage = np.zeros(len(replicas), dtype=np.int64)
    residuals = against_peers(fastest, one_stage, case.limits.peers)
    noise, chance = noise_of(residuals.values), case.limits.healthy_false_alarm / len(replicas)
    allowed = bounds(fastest, one_stage, noise, case.limits.healthy_spread, chance)
    least = math.log(case.limits.rank_ratio)
    found = scan(residuals._replace(allowed=allowed), case.limits, least_excess=least).found
    if not found:
        return None
    return Candidate(
        cause=Cause.INCONCLUSIVE,
        ideal=case.ideal(_ideal_of_replicas(case, visits, replica, found)),
        first_step=int(visits.steps[min(each.first for each in found)]),
        evidence={
            "suspected_replicas": [
                {
                    "replica": int(replicas[each.column]),
                    "ranks": visits.ranks[replica == each.column][:_MOST_LISTED].tolist(),
                    "slower_by_ratio": math.expm1(each.size),
                    "score": each.score,
                }
                for each in found[:_MOST_LISTED]
            ],
            "why": WHY,
        },
    )


def _fastest(visits: Visits, replica: Ints, replicas: int) -> Floats:
    """(step, replica): the lowest mean logarithm of its ranks; NaN for a replica of one rank."""
    residuals = visits.residuals
    usual = nan_median(residuals.reshape(len(residuals), -1), axis=1)[:, None, None]
    own = nan_mean(residuals - usual, axis=2)
    fastest = np.full((replicas, len(own)), np.inf)
    np.minimum.at(fastest, replica, np.where(np.isfinite(own), own, np.inf).T)
    fastest[np.bincount(replica) < 2] = np.inf
    lowest: Floats = np.where(np.isinf(fastest), np.nan, fastest).T
    return lowest


def _ideal_of_replicas(case: Case, visits: Visits, replica: Ints, found: tuple[Excess, ...]) -> Floats:
    ideal = case.seconds.copy()
    for each in found:
        ranks = visits.ranks[replica == each.column]
        rows = (case.table.kind == Kind.COMPUTE) & np.isin(case.table.rank, ranks)
        rows &= np.isin(case.table.step, visits.steps[each.first : each.end])
        ideal[rows] *= math.exp(-each.size)
    return ideal
