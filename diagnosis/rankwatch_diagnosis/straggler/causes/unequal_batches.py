"""Microbatches of unequal size: slow on every rank and in every operation that they visit."""

from __future__ import annotations

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.groups import Floats, Groups
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.robust import finite_exp, high_stretch
from rankwatch_diagnosis.straggler.visits import Visits


def find_unequal_batches(case: Case, visits: Visits, difficulty: Difficulty) -> Candidate | None:
    """Difficulty that ranks or operations share, or that work units explain.

    The ideal spreads the same work evenly: the sum over a role stays what it is.
    """
    limits = case.limits
    rows = visits.rows
    shared = difficulty.to_even[rows.step, rows.rank, rows.slot]
    seen = difficulty.sigma >= limits.difficulty_sigma and difficulty.share >= limits.difficulty_share
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
    """The first step of the stretch in which microbatches spread."""
    step = Groups(visits.rows.step, len(visits.steps))
    size = np.maximum(step.size(), 1)
    mean = step.sum(logarithm) / size
    spread = np.sqrt(step.sum((logarithm - mean[step.number]) ** 2) / size)
    window = high_stretch(spread, float(np.quantile(spread, 0.9)) / 3.0, least)
    return int(visits.steps[window[0] if window else 0])
