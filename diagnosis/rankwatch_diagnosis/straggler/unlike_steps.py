"""Steps that are not like the others, for every rank: compiling, warming up, a batch of another size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.straggler.arrays import Floats, nan_median

_RATIO = 1.5
"""Of the typical compute of a step over that of the run. A few late ranks do not move the typical one."""


def unlike_steps(residuals: Floats, least: int) -> NDArray[np.bool_]:
    """By step: whether it says nothing of ranks; `residuals` are logarithms, the first axis counts steps.

    In such a step ranks differ for reasons of its own (one finds its kernels in a cache, another compiles
    them), and it would drown all other steps. What goes on for `least` steps is a state of the run.
    """
    typical = nan_median(residuals.reshape(len(residuals), -1), axis=1)
    far: NDArray[np.bool_] = np.nan_to_num(typical - nan_median(typical)) > np.log(_RATIO)
    edges = np.flatnonzero(np.diff(np.r_[False, far, False]))
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        far[first:end] = end - first < least
    return far
