"""What known units of work explain of the durations."""

from __future__ import annotations

import numpy as np

from rankwatch_diagnosis.straggler.arrays import Floats, Ints

_LEAST_COVERAGE = 0.9
"""Share of rows that must tell their work; with fewer, told and untold rows would not compare."""
_BINS = 24
_LEAST_ROWS_PER_BIN = 20
"""So that one slow rank moves no median by much."""


def told(work: Floats) -> bool:
    """Whether enough rows tell their work."""
    return bool((np.isfinite(work) & (work > 0.0)).mean() >= _LEAST_COVERAGE)


def explained_by_work(residual: Floats, work: Floats, role: Ints, roles: int) -> Floats | None:
    """Logarithm of duration by work units, by row; None where work is unknown or all the same.

    Neither the unit nor the law is known (tokens, squared lengths, a constant part): within each role a line
    through the medians of bins of equal size follows any of them.
    """
    known = np.isfinite(work) & (work > 0.0)
    if not told(work):
        return None
    logarithm = np.log(np.where(known, work, 1.0))
    if np.std(logarithm[known]) < 1e-3:
        return None
    explained = np.zeros(len(residual))
    order = np.argsort(role, kind="stable")
    ends = np.cumsum(np.bincount(role, minlength=roles))
    for start, end in zip(np.r_[0, ends[:-1]], ends, strict=True):
        rows = order[start:end]
        rows = rows[known[rows]]
        if rows.size:
            explained[rows] = _curve(logarithm[rows], residual[rows])
    return explained


def _curve(logarithm: Floats, residual: Floats) -> Floats:
    bins = max(2, min(_BINS, len(logarithm) // _LEAST_ROWS_PER_BIN))
    order = np.argsort(logarithm, kind="stable")
    parts = [part for part in np.array_split(order, bins) if part.size]
    centres = np.array([np.median(logarithm[part]) for part in parts])
    medians = np.array([np.median(residual[part]) for part in parts])
    distinct, first = np.unique(centres, return_index=True)
    if len(distinct) < 2:
        return np.full(len(residual), float(np.median(residual)))
    # Beyond the outermost bins the line goes on with its last slope.
    curve: Floats = np.interp(logarithm, distinct, medians[first])
    for end, inner in ((0, 1), (-1, -2)):
        slope = (medians[first][end] - medians[first][inner]) / (distinct[end] - distinct[inner])
        beyond = logarithm < distinct[0] if end == 0 else logarithm > distinct[-1]
        curve[beyond] = medians[first][end] + slope * (logarithm[beyond] - distinct[end])
    return np.clip(curve, residual.min(), residual.max())
