"""Microbatches of unequal size: slow on every rank and in every operation that they visit."""

from __future__ import annotations

import numpy as np

from rankwatch.conventions import Cause
from rankwatch_diagnosis.straggler.arrays import Floats, finite_exp
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.stretch import high_stretch
from rankwatch_diagnosis.straggler.units import Units


def find_imbalance(case: Case, units: Units, difficulty: Difficulty) -> Finding | None:
    """Difficulty that ranks or operations share, or that work units explain."""
    limits = case.limits
    rows = units.rows
    shared = difficulty.to_even[rows.step, rows.rank, rows.slot]
    seen = difficulty.sigma >= limits.difficulty_sigma and difficulty.share >= limits.difficulty_share
    if not seen:
        shared = np.zeros(len(rows.index))
    by_work = 0.0 if units.work_log is None else float(np.std(units.work_log))
    if not seen and by_work < limits.difficulty_sigma:
        return None
    logarithm = shared if units.work_log is None else shared + units.work_log
    ideal = case.seconds.copy()
    # The same work, spread evenly: what a role takes altogether stays what it is.
    even = ideal[rows.index] / finite_exp(logarithm)
    kept = np.bincount(rows.role, weights=ideal[rows.index]) / np.bincount(rows.role, weights=even)
    ideal[rows.index] = even * kept[rows.role]
    return Finding(
        cause=Cause.UNEQUAL_BATCHES,
        ideal=ideal,
        first_step=_first_step(units, logarithm, limits.steps),
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
    return "ranks that share microbatches" if difficulty.mates else "operations on the same microbatch"


def _first_step(units: Units, logarithm: Floats, least: int) -> int:
    step = units.rows.step
    count = np.maximum(np.bincount(step, minlength=len(units.steps)), 1)
    mean = np.bincount(step, weights=logarithm, minlength=len(units.steps)) / count
    spread = np.sqrt(np.bincount(step, weights=(logarithm - mean[step]) ** 2) / count)
    window = high_stretch(spread, float(np.quantile(spread, 0.9)) / 3.0, least)
    return int(units.steps[window[0] if window else 0])
