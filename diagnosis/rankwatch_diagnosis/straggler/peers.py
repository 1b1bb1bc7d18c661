"""Each rank against the ranks that do the same work: those of its pipeline stage, in the same step."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.straggler.arrays import Floats, Ints, leave_one_out_median, nan_median


class Residuals(NamedTuple):
    """What is left of a rank when its peers are taken away."""

    values: Floats
    """(step, rank); NaN where there is nobody to compare with."""
    reference_error: Floats
    """By rank: standard error of what it is compared with, in units of one step's noise."""


def against_peers(own: Floats, stage: Ints, least_peers: int) -> Residuals:
    """Each rank less the median of the others of its stage in the same step.

    Of stages with fewer ranks nothing is told by level. There a rank is compared with its own past or future,
    whichever was faster, so that only what begins or ends inside the run is seen.
    """
    residual = np.full_like(own, np.nan)
    error = np.zeros(own.shape[1])
    for each in np.unique(stage):
        ranks = np.flatnonzero(stage == each)
        if len(ranks) >= least_peers:
            residual[:, ranks] = own[:, ranks] - leave_one_out_median(own[:, ranks], axis=1)
    alone = ~np.isfinite(residual).any(axis=0)
    if alone.any() and own.shape[1] >= least_peers:
        part = max(4, len(own) // 4)
        changes = own - nan_median(own, axis=0)[None]
        changes = changes - leave_one_out_median(changes, axis=1)
        base = np.fmin(nan_median(changes[:part], axis=0), nan_median(changes[-part:], axis=0))
        changes = changes - base[None]
        # The smaller of two medians lies low by chance, on every rank alike.
        changes = changes - nan_median(changes)
        residual[:, alone] = changes[:, alone]
        error[alone] = math.sqrt(math.pi / 2.0 / part)
    return Residuals(residual, error)
