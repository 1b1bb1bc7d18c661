"""How far healthy ranks lie apart for long, learnt from the ranks of the job itself.

No two accelerators are equally fast: in one job they lie within 1 %, in another they spread by 3 %. A rank is
slow only where it lies beyond what the others show. The spread is a quantile of the differences of two ranks
of a stage, over all stages, so that a few slow ranks hardly move it. Few ranks show it badly. So it is mixed
with what healthy clusters usually show, and its bound is that of Student's distribution.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Ints
from rankwatch_diagnosis.straggler.robust import nan_median

_PRIOR_FREEDOM = 4.0
"""Degrees of freedom of the usual spread: as much as five ranks tell."""
_EFFICIENCY = 0.8
"""Part of the degrees of freedom that a median of differences keeps."""
_QUANTILE = 0.4
"""Of the differences. A fifth of the ranks may be slow and hardly moves it."""
_TO_SIGMA = 1.3484
"""That quantile, of normal values, to their standard deviation: 1 / (sqrt 2 z(0.7))."""
_MANY = 64
"""Ranks from which on a single one hardly moves the spread."""
_MOST_RANKS = 512
"""Of a stage whose differences are taken. More would tell nothing new and cost memory."""


class Spread(NamedTuple):
    """Of the lasting levels of healthy ranks."""

    sigma: float
    """Standard deviation, in the unit of the residuals."""
    freedom: float
    """Degrees of freedom with which it is known."""

    def bound(self, chance: float) -> float:
        """What a healthy rank exceeds with this chance."""
        return self.sigma * _student(NormalDist().inv_cdf(1.0 - chance), self.freedom)


def lasting_spread(own: Floats, stage: Ints, noise: float, usual: float) -> Spread:
    """The spread of the levels of `own` (step, rank) around their stages.

    `noise` is that of one rank in one step, and `usual` the spread of healthy ranks elsewhere.
    """
    return _of_levels(_levels(own, stage), stage, _by_chance(noise, len(own)), usual)


def bounds(own: Floats, stage: Ints, noise: float, usual: float, chance: float) -> Floats:
    """By rank: what a healthy one exceeds with this chance. A slow rank must not raise its own bound, so each
    is learnt from the others.
    """
    levels, by_chance = _levels(own, stage), _by_chance(noise, len(own))
    ranks = len(levels)
    if ranks > _MANY:
        return np.full(ranks, _of_levels(levels, stage, by_chance, usual).bound(chance))
    others = [np.arange(ranks) != each for each in range(ranks)]
    return np.array(
        [_of_levels(levels[kept], stage[kept], by_chance, usual).bound(chance) for kept in others]
    )


def _by_chance(noise: float, steps: int) -> float:
    """Variance of a level, which is a median over the steps: pi/2 times that of their mean."""
    return math.pi / 2.0 * noise**2 / steps


def _levels(own: Floats, stage: Ints) -> Floats:
    """By rank: its median over the steps, less what its stage shares in each of them."""
    levels = np.full(own.shape[1], np.nan)
    for each in np.unique(stage):
        values = own[:, stage == each]
        levels[stage == each] = nan_median(values - nan_median(values, axis=1)[:, None], axis=0)
    return levels


def _of_levels(levels: Floats, stage: Ints, by_chance: float, usual: float) -> Spread:
    found: list[Floats] = []
    freedom = 0.0
    for each in np.unique(stage):
        level = levels[(stage == each) & np.isfinite(levels)]
        if len(level) < 2:
            continue
        freedom += _EFFICIENCY * (len(level) - 1)
        level = level[:: -(-len(level) // _MOST_RANKS)]
        first, second = np.triu_indices(len(level), 1)
        found.append(np.abs(level[first] - level[second]))
    if not found:
        return Spread(usual, _PRIOR_FREEDOM)
    seen = float(np.quantile(np.concatenate(found), _QUANTILE)) * _TO_SIGMA
    learnt = max(seen**2 - by_chance, 0.0)
    sigma = math.sqrt((_PRIOR_FREEDOM * usual**2 + freedom * learnt) / (_PRIOR_FREEDOM + freedom))
    return Spread(sigma, _PRIOR_FREEDOM + freedom)


def _student(z: float, freedom: float) -> float:
    """Quantile of Student's distribution at the place of the normal quantile z (Wallace, 1959)."""
    scaled = z * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0)
    return math.sqrt(freedom * math.expm1(min(scaled**2 / freedom, 50.0)))
