"""Time that varies and is no rank's own: microbatches of unequal size, and ranks that are late in turn.

An unequal microbatch is slow on every rank and in every operation that it visits. Jitter (garbage collection,
interrupts, page faults) makes ranks late in turn, none for long.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.groups import Floats, Groups
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.robust import finite_exp, high_stretch, nan_median, sigma
from rankwatch_diagnosis.straggler.slowness import Slowness
from rankwatch_diagnosis.straggler.visits import Visits

_BEYOND_NOISE = 3.0
"""In standard deviations."""
_LEAST_RANKS = 3
_MOST_OF_ONE_RANK = 0.5
"""Share of the lateness that one rank may hold; with more it is that rank's own affair."""
_MOST_OF_ONE_STEP = 0.5
"""The same of one step: an event, such as a pause of all hosts, and nothing that goes on."""


def find_jitter(case: Case, visits: Visits, difficulty: Difficulty, slowness: Slowness) -> Candidate | None:
    """Find steps late beyond noise, spread over several ranks; the visits are those without slow ranks."""
    rows = visits.rows
    cells = Groups.grid((rows.step, len(visits.steps)), (rows.rank, len(visits.ranks)))
    fair = _fair_seconds(visits, difficulty, slowness)
    excess, expected = _excess(case, visits, fair, cells)
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
    regular = ~visits.irregular[rows.step]
    index = rows.index[regular]
    ideal[index] = _without_delays(ideal[index], fair[regular], Groups(cells.number[regular], cells.count))
    return Candidate(
        cause=Cause.JITTER,
        ideal=case.ideal(ideal),
        first_step=int(visits.steps[int(np.argmax(late.any(axis=1)))]),
        evidence={
            "late_rank_steps_share": float(late.mean()),
            "late_ranks": int(np.count_nonzero(by_rank)),
            "lateness_median_ratio": float(np.median(excess[late])),
            "lateness_needed_ratio": level,
            "largest_share_of_one_rank": float(by_rank.max() / by_rank.sum()),
        },
    )


def _fair_seconds(visits: Visits, difficulty: Difficulty, slowness: Slowness) -> Floats:
    """Return the seconds by compute row that role, microbatch, work, level and slowness of a rank explain."""
    rows = visits.rows
    logarithm = visits.role_log + difficulty.of_visit[rows.step, rows.rank, rows.slot]
    if visits.work_log is not None:
        logarithm = logarithm + visits.work_log
    level = np.nan_to_num(nan_median(difficulty.own, axis=0)) + slowness.excess
    return finite_exp(logarithm + level[rows.step, rows.rank])


def _excess(case: Case, visits: Visits, fair: Floats, cells: Groups) -> tuple[Floats, Floats]:
    """Return by (step, rank) taken / expected - 1, less the median of the step; and the expected seconds."""
    size = (len(visits.steps), len(visits.ranks))
    expected = cells.sum(fair).reshape(size)
    taken = cells.sum(case.seconds[visits.rows.index]).reshape(size)
    excess = np.divide(taken, expected, out=np.full(size, np.nan), where=expected > 0.0) - 1.0
    excess = excess - nan_median(excess, axis=1)[:, None]
    excess[visits.irregular] = np.nan
    return excess, expected


def _in_turn(by_rank: Floats, by_step: Floats, least_steps: int) -> bool:
    """Return True if lateness falls to several ranks in several steps, and to none of them mostly."""
    if np.count_nonzero(by_rank) < _LEAST_RANKS or np.count_nonzero(by_step) < least_steps:
        return False
    one_rank, one_step = by_rank.max() / by_rank.sum(), by_step.max() / by_step.sum()
    return bool(one_rank <= _MOST_OF_ONE_RANK and one_step <= _MOST_OF_ONE_STEP)


def _without_delays(seconds: Floats, fair: Floats, rank_step: Groups) -> Floats:
    """Return by row the seconds without delays beyond noise.

    Small delays cost as well, so they go too. Most delays hit one operation; what is still late without
    those is a step of a rank that is late as a whole.
    """
    ratio = seconds / fair - 1.0
    without = np.where(ratio > _BEYOND_NOISE * sigma(ratio), fair, seconds)
    expected = rank_step.sum(fair)
    excess = rank_step.sum(without) / np.maximum(expected, 1e-18) - 1.0
    seen = expected > 0.0
    excess = np.where(seen, excess - np.median(excess[seen]), 0.0)
    late = excess > _BEYOND_NOISE * sigma(excess[seen])
    return np.asarray(without / np.where(late, 1.0 + excess, 1.0)[rank_step.number])


def find_unequal_batches(case: Case, visits: Visits, difficulty: Difficulty) -> Candidate | None:
    """Find difficulty that ranks or operations share, or that work units explain.

    The ideal spreads the same work evenly: the sum over a role stays what it is.
    """
    limits = case.limits
    rows = visits.rows
    shared = difficulty.to_even[rows.step, rows.rank, rows.slot]
    seen = difficulty.is_unequal(limits)
    if not seen:
        shared = np.zeros(len(rows.index))
    by_work = 0.0 if visits.work_log is None else float(np.std(visits.work_log))
    if not seen and by_work < limits.difficulty_sigma:
        return None
    logarithm = shared if visits.work_log is None else shared + visits.work_log
    ideal = case.seconds.copy()
    even = ideal[rows.index] / finite_exp(logarithm)
    kept = rows.role.sum(ideal[rows.index]) / rows.role.sum(even)
    ideal[rows.index] = even * kept[rows.role.number]
    return Candidate(
        cause=Cause.UNEQUAL_BATCHES,
        ideal=case.ideal(ideal),
        first_step=_first_step(visits, logarithm, limits.steps),
        evidence={
            "microbatch_sigma_ratio": max(difficulty.sigma, by_work),
            "explained_by_microbatch_share": difficulty.share,
            "explained_by_work_sigma_ratio": by_work,
            "seen_by": _seen_by(difficulty, by_work, seen),
        },
    )


def _seen_by(difficulty: Difficulty, by_work: float, seen: bool) -> str:
    if by_work > (difficulty.sigma if seen else 0.0):
        return "work units"
    return "ranks that share microbatches" if difficulty.across_ranks else "operations on the same microbatch"


def _first_step(visits: Visits, logarithm: Floats, least: int) -> int:
    """Return the first step of the stretch in which microbatches spread."""
    step = Groups(visits.rows.step, len(visits.steps))
    size = np.maximum(step.size(), 1)
    mean = step.sum(logarithm) / size
    spread = np.sqrt(step.sum((logarithm - mean[step.number]) ** 2) / size)
    window = high_stretch(spread, float(np.quantile(spread, 0.9)) / 3.0, least)
    return int(visits.steps[window[0] if window else 0])
