"""The loss of a simulated run."""

from __future__ import annotations

import numpy as np

_FIRST, _LAST, _POWER, _NOISE = 10.0, 2.0, 0.5, 0.01


def losses(steps: int, seed: int) -> list[float]:
    """By step: a power law with noise of 1 %, the shape of most losses; one for all ranks, all-reduced."""
    noise = np.random.default_rng([seed, steps]).standard_normal(steps)
    curve = _LAST + (_FIRST - _LAST) * (np.arange(steps) + 1.0) ** -_POWER
    return [float(each) for each in curve * (1.0 + _NOISE * noise)]
