"""Ranks that are late in turn, none for long: garbage collection, interrupts, page faults."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from rankwatch.conventions import Cause
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, finite_exp, nan_median, sigma
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.persistence import Scan
from rankwatch_diagnosis.straggler.units import Units

_BEYOND_NOISE = 3.0
_LEAST_RANKS = 3
_MOST_OF_ONE_RANK = 0.5
"""Share of the lateness that one rank may hold; with more it is that rank's own affair."""
_MOST_OF_ONE_STEP = 0.5
"""The same of one step: an event, as a pause of all hosts is, and nothing that goes on."""


def find_jitter(case: Case, units: Units, difficulty: Difficulty, workers: Scan) -> Finding | None:
    """Late rank-steps beyond noise, spread over several ranks."""
    rows = units.rows
    size = (len(units.steps), len(units.ranks))
    logarithm = units.role_log + difficulty.of_visit[rows.step, rows.rank, rows.slot]
    if units.work_log is not None:
        logarithm = logarithm + units.work_log
    fair = finite_exp(logarithm) * _lasting_factor(units, difficulty, workers)[rows.step, rows.rank]
    key = rows.step * size[1] + rows.rank
    expected = np.bincount(key, weights=fair, minlength=size[0] * size[1]).reshape(size)
    taken = np.bincount(key, weights=case.seconds[rows.index], minlength=size[0] * size[1]).reshape(size)
    excess = np.divide(taken, expected, out=np.full(size, np.nan), where=expected > 0.0) - 1.0
    excess = excess - nan_median(excess, axis=1)[:, None]
    excess[units.unlike] = np.nan
    quantile = NormalDist().inv_cdf(1.0 - case.limits.false_alarm / excess.size)
    level = max(case.limits.jitter_share, quantile * sigma(excess))
    late = np.nan_to_num(excess) > level
    if late.mean() < case.limits.jitter_rank_steps_share:
        return None
    lateness = np.where(late, excess * expected, 0.0)
    by_rank = lateness.sum(axis=0)
    if not _in_turn(by_rank, lateness.sum(axis=1), case.limits.steps):
        return None
    ideal = case.seconds.copy()
    like = ~units.unlike[rows.step]
    ideal[rows.index[like]] = _without_delays(ideal[rows.index[like]], fair[like], key[like])
    return Finding(
        cause=Cause.JITTER,
        ideal=ideal,
        first_step=int(units.steps[int(np.argmax(late.any(axis=1)))]),
        evidence={
            "late_rank_steps_share": float(late.mean()),
            "late_ranks": int(np.count_nonzero(by_rank)),
            "lateness_median_ratio": float(np.median(excess[late])),
            "lateness_needed_ratio": level,
            "largest_share_of_one_rank": float(by_rank.max() / by_rank.sum()),
        },
    )


def _in_turn(by_rank: Floats, by_step: Floats, least_steps: int) -> bool:
    """Whether lateness falls to several ranks in several steps, and to none of them mostly."""
    if np.count_nonzero(by_rank) < _LEAST_RANKS or np.count_nonzero(by_step) < least_steps:
        return False
    one_rank, one_step = by_rank.max() / by_rank.sum(), by_step.max() / by_step.sum()
    return bool(one_rank <= _MOST_OF_ONE_RANK and one_step <= _MOST_OF_ONE_STEP)


def _without_delays(seconds: Floats, fair: Floats, rank_step: Ints) -> Floats:
    """By row. Jitter is there; its small delays cost as well, down to what noise does by itself.

    Most delays strike one operation. What is still late without those is a rank-step that is late as a whole.
    """
    ratio = seconds / fair - 1.0
    without = np.where(ratio > _BEYOND_NOISE * sigma(ratio), fair, seconds)
    expected = np.bincount(rank_step, weights=fair)
    excess = np.bincount(rank_step, weights=without) / np.maximum(expected, 1e-18) - 1.0
    seen = expected > 0.0
    excess = np.where(seen, excess - np.median(excess[seen]), 0.0)
    late = excess > _BEYOND_NOISE * sigma(excess[seen])
    return np.asarray(without / np.where(late, 1.0 + excess, 1.0)[rank_step])


def _lasting_factor(units: Units, difficulty: Difficulty, workers: Scan) -> Floats:
    """(step, rank): what lasts on a rank is no jitter."""
    levels = np.nan_to_num(nan_median(difficulty.own, axis=0))
    factor = np.broadcast_to(finite_exp(levels), difficulty.own.shape).copy()
    for each in workers.found:
        inside = slice(each.first, each.end)
        own = difficulty.own[inside, each.column]
        factor[inside, each.column] = np.exp(float(np.nan_to_num(nan_median(own))))
    return factor
