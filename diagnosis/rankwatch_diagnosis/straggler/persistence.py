"""Ranks that lie above their peers for long: a scan over windows of steps, with a level fixed in advance.

A window of n steps of one rank scores

    score = sum of clipped residuals / sqrt(noise^2 n + (lasting error n)^2)

and counts if it passes the quantile of the normal distribution at 1 - false_alarm / (number of windows and
ranks). A rank that is late again and again, but in no window mostly, counts if it is late more often than the
other ranks are (see `recurrent`).

No two accelerators are equally fast: in one job they lie within 1 %, in another they spread by 3 %. A rank is
slow only where it lies beyond what the others show (`lasting_spread`). The spread is a quantile of the
differences of two ranks of a stage, over all stages, so that a few slow ranks hardly move it. Few ranks show
it badly. So it is mixed with what healthy clusters usually show, and its bound is that of Student's
distribution.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Bools, Floats, Ints
from rankwatch_diagnosis.straggler.robust import (
    largest_stretch,
    leave_one_out_median,
    nan_mean,
    nan_median,
    sigma,
)
from rankwatch_diagnosis.straggler.thresholds import Thresholds

_CLIP = 3.0
"""In standard deviations: a single late step must not carry a window (Huber's score, cut far out)."""
_LEAST_NOISE = 0.001
"""Clocks and rounding; a table without any noise is no reason to be more certain than this."""
_ROOM = 1.5
"""Room that the clipping leaves, in units of what healthy ranks may differ by."""
_LEAST_RANKS_FOR_TAILS = 8
"""With fewer ranks the tails of healthy ones cannot be told from a slow one."""
_LEAST_SEEN = 0.75
"""Part of a window that must not be gaps."""
CLEAR = 4.0
"""In standard deviations of one step: from here on single steps separate slow from not slow."""
_MOST_EPISODES = 8
"""Windows of one rank that are looked for, the clearest first."""
_LEAST_CHANGE_STEPS = 12
"""Of a rank compared with its own past: three shortest windows, so that two ends remain beside an episode."""
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


class Residuals(NamedTuple):
    """What is left of each rank when its peers are taken away."""

    values: Floats
    """(step, rank); NaN where there is no peer to compare with."""
    reference_error: Floats
    """By rank: standard error of what it is compared with, in units of one step's noise."""
    allowed: Floats
    """By rank: a lasting excess that healthy ranks may have."""


class Excess(NamedTuple):
    """One rank that lies above its peers for long."""

    column: int
    """Index of the rank."""
    first: int
    """Index of the first step in which it does."""
    end: int
    """Index behind the last one."""
    size: float
    """Median over its steps, in the unit of the residuals."""
    score: float
    """Standard deviations above what noise gives."""
    active: Bools
    """By step: it lies above its peers. It may come and go."""

    @property
    def steps(self) -> int:
        """In which it lies above its peers."""
        return int(np.count_nonzero(self.active))


class Scan(NamedTuple):
    """All ranks with a lasting excess, and the level they had to pass."""

    found: tuple[Excess, ...]
    noise: float
    """Standard deviation of one rank in one step."""
    level: float
    """The score that noise passes with the chance of a false alarm."""


def against_peers(own: Floats, stage: Ints, least_peers: int) -> Residuals:
    """Subtract from each rank the median of the others of its stage in the same step. `own` is (step, rank).

    NaN in a stage with fewer than `least_peers` ranks, where the level is no evidence.
    """
    residual = np.full_like(own, np.nan)
    for each in np.unique(stage):
        ranks = np.flatnonzero(stage == each)
        if len(ranks) >= least_peers:
            residual[:, ranks] = own[:, ranks] - leave_one_out_median(own[:, ranks], axis=1)
    nothing = np.zeros(own.shape[1])
    return Residuals(residual, nothing, nothing)


def against_past(own: Floats, least_ranks: int) -> Residuals:
    """Compare each rank with the faster one of its past and future, so that only what begins or ends is seen.

    What all ranks share is taken away; NaN with fewer than `least_ranks` ranks, or few steps.
    """
    nothing = np.zeros(own.shape[1])
    if own.shape[1] < least_ranks or len(own) < _LEAST_CHANGE_STEPS:
        return Residuals(np.full_like(own, np.nan), nothing, nothing)
    part = max(4, len(own) // 4)
    changes = own - nan_median(own, axis=0)[None]
    changes = changes - leave_one_out_median(changes, axis=1)
    base = np.fmin(nan_median(changes[:part], axis=0), nan_median(changes[-part:], axis=0))
    changes = changes - base[None]
    # The smaller of two medians lies low by chance, on every rank alike.
    changes = changes - nan_median(changes)
    return Residuals(changes, nothing + math.sqrt(math.pi / 2.0 / part), nothing)


def scan(residuals: Residuals, limits: Thresholds, *, least_excess: float) -> Scan:
    """Find ranks whose residual exceeds `least_excess` (in its unit) for at least `limits.steps` steps."""
    residual = residuals.values
    steps, ranks = residual.shape
    noise = noise_of(residual)
    if steps < limits.steps or noise <= 0.0:
        return Scan(found=(), noise=noise, level=math.inf)
    lengths = _lengths(limits.steps, steps)
    # Windows of one length that overlap are one test; the dyadic lengths are a few more.
    tests = ranks * sum(2 * steps / length for length in lengths)
    level = NormalDist().inv_cdf(1.0 - limits.false_alarm / tests)
    # The more healthy ranks differ for long, the more of a residual must get through the clipping.
    bound = _CLIP * noise + _ROOM * residuals.allowed
    lasting_error = np.hypot(residuals.allowed / level, noise * residuals.reference_error)
    clipped = np.clip(residual, -bound, bound)
    usual, tails = _tails(clipped)
    best = _best_scores(clipped - usual, lengths, max(noise, tails), lasting_error)
    suspects = np.flatnonzero(best > level)
    found = (
        _excess(residual[:, index], int(index), float(best[index]), noise, level, limits)
        for index in suspects
    )
    lasting = tuple(each for each in found if each is not None and each.size >= least_excess)
    return Scan(found=lasting, noise=noise, level=level)


def recurrent(residuals: Residuals, limits: Thresholds, *, least_excess: float) -> Scan:
    """Find ranks that are late in at most half of the steps, but far more often than others.

    A step is late if it lies above the rank's own median by `least_excess` and beyond noise. Others are late,
    too: their rate, without the quarter of the ranks that is late most often, is that of chance.
    """
    values = residuals.values - nan_median(residuals.values, axis=0)[None]
    noise = noise_of(values)
    level = NormalDist().inv_cdf(1.0 - limits.false_alarm / max(1, values.shape[1]))
    late = np.nan_to_num(values) > max(least_excess, CLEAR * noise)
    seen, count = np.isfinite(values).sum(axis=0), late.sum(axis=0)
    found: list[Excess] = []
    for index in np.flatnonzero((count >= limits.steps) & (2 * count <= seen)).tolist():
        score = _rarity(int(count[index]), int(seen[index]), _rate(np.delete(count, index), seen))
        if score > level:
            found.append(_of_steps(values[:, index], index, late[:, index], score))
    return Scan(found=tuple(found), noise=noise, level=level)


def _rate(late: Ints, seen: Ints) -> float:
    """Return the share of late steps among the three quarters of ranks that are late least often."""
    steps = float(np.median(seen))
    calm = np.sort(late)[: max(1, len(late) - len(late) // 4)]
    rate = (float(calm.sum()) + 0.5) / (len(calm) * steps + 1.0)
    # The mean of the lower three quarters of a normal distribution lies 0.42 standard deviations low.
    return min(0.5, rate + 0.42 * math.sqrt(rate / steps))


def _rarity(late: int, seen: int, rate: float) -> float:
    """Return the standard deviations that are as rare as so many late steps by chance (binomial)."""
    terms = (
        math.lgamma(seen + 1)
        - math.lgamma(each + 1)
        - math.lgamma(seen - each + 1)
        + each * math.log(rate)
        + (seen - each) * math.log1p(-rate)
        for each in range(late, seen + 1)
    )
    chance = sum(math.exp(each) for each in terms)
    return -NormalDist().inv_cdf(min(max(chance, 1e-300), 1.0 - 1e-16))


def _of_steps(residual: Floats, index: int, active: Bools, score: float) -> Excess:
    steps = np.flatnonzero(active)
    size = float(nan_median(residual[active]))
    return Excess(index, int(steps[0]), int(steps[-1]) + 1, size, score, active)


def noise_of(residual: Floats) -> float:
    """Return the noise of a rank in a step, widened by its uncertainty and what carries over to the next."""
    centred = residual - nan_median(residual, axis=0)[None]
    count = int(np.isfinite(centred).sum())
    level = sigma(centred)
    if count == 0:
        return 0.0
    if level < _LEAST_NOISE:
        return _LEAST_NOISE
    clipped = np.clip(centred, -_CLIP * level, _CLIP * level) / level
    products = clipped[1:] * clipped[:-1]
    per_rank = nan_median(nan_mean(products, axis=0)) if len(products) >= 8 else np.array(0.0)
    memory = min(max(float(np.nan_to_num(per_rank)), 0.0), 0.9)
    # 1.17 / sqrt(n) is the relative standard error of a MAD.
    return level * math.sqrt((1.0 + memory) / (1.0 - memory)) * (1.0 + 1.17 / math.sqrt(count))


def _tails(clipped: Floats) -> tuple[float, float]:
    """Return mean and standard deviation of a healthy rank's steps, single late ones included.

    Where ranks are often late in turn, one of them is late several times in a row by chance alone. The
    quarter of the ranks that varies most is left out: they may have become slow inside the run.
    """
    steps, ranks = clipped.shape
    if ranks < _LEAST_RANKS_FOR_TAILS:
        return 0.0, 0.0
    means = nan_mean(clipped, axis=0)
    variances = nan_mean((clipped - means[None]) ** 2, axis=0) * steps / (steps - 1)
    calm = np.sort(variances[np.isfinite(variances)])[: max(1, ranks - ranks // 4)]
    usual = max(0.0, float(np.nan_to_num(nan_median(means))))
    return usual, math.sqrt(float(calm.mean())) if calm.size else 0.0


def _lengths(least: int, steps: int) -> list[int]:
    """List lengths of windows: from the shortest to all steps, each about sqrt(2) times the one before."""
    lengths = [steps]
    length = float(least)
    while length < steps:
        lengths.append(int(length))
        length *= math.sqrt(2.0)
    return sorted(set(lengths))


def _best_scores(clipped: Floats, lengths: list[int], noise: float, lasting_error: Floats) -> Floats:
    """Return by rank the highest score of all windows."""
    steps, ranks = clipped.shape
    sums = np.zeros((steps + 1, ranks))
    counts = np.zeros((steps + 1, ranks))
    np.cumsum(np.nan_to_num(clipped), axis=0, out=sums[1:])
    np.cumsum(np.isfinite(clipped), axis=0, out=counts[1:])
    best = np.full(ranks, -np.inf)
    for length in lengths:
        total = sums[length:] - sums[:-length]
        count = counts[length:] - counts[:-length]
        error = np.sqrt(noise**2 * count + (lasting_error * count) ** 2)
        seen = count >= max(3, _LEAST_SEEN * length)
        score = np.where(seen, total / np.maximum(error, 1e-18), -np.inf)
        np.maximum(best, score.max(axis=0), out=best)
    return best


def _excess(
    residual: Floats, index: int, score: float, noise: float, level: float, limits: Thresholds
) -> Excess | None:
    """Return the steps in which a rank is slow, and by how much; None if it is not slow for long."""
    window = _window(residual, noise, limits.steps)
    if window is None or not _persists(residual[slice(*window)], limits):
        return None
    size = float(nan_median(residual[slice(*window)]))
    if size >= CLEAR * noise:
        return _of_steps(residual, index, np.nan_to_num(residual) > size / 2.0, score)
    active = np.zeros(len(residual), dtype=np.bool_)
    active[slice(*window)] = True
    for _ in range(_MOST_EPISODES):
        more = _window(np.where(active, -np.inf, residual), noise, limits.steps)
        if more is None or not _persists(residual[slice(*more)], limits):
            break
        clipped = np.nan_to_num(np.clip(residual[slice(*more)], -_CLIP * noise, _CLIP * noise))
        if clipped.sum() < level * noise * math.sqrt(len(clipped)):
            break
        active[slice(*more)] = True
    return _of_steps(residual, index, active, score)


def _window(residual: Floats, noise: float, least: int) -> tuple[int, int] | None:
    """Return the stretch with the largest sum above half the effect: the likeliest window of a new level."""
    clipped = np.nan_to_num(np.clip(residual, -4.0 * noise, 4.0 * noise))
    clipped[np.isneginf(residual)] = -4.0 * noise * len(residual)  # no window holds these
    half = noise / 2.0
    first, end = 0, len(clipped)
    for _ in range(3):  # the effect depends on the window, and the window on the effect
        first, end = largest_stretch(clipped - half)
        if end - first < least:
            return None
        half = min(float(nan_median(residual[first:end])), 4.0 * noise) / 2.0
    return first, end


def _persists(window: Floats, limits: Thresholds) -> bool:
    seen = window[np.isfinite(window)]
    return seen.size >= limits.steps - 1 and float(np.mean(seen > 0.0)) >= limits.rank_persistence


class Spread(NamedTuple):
    """Of the lasting levels of healthy ranks."""

    sigma: float
    """Standard deviation, in the unit of the residuals."""
    freedom: float
    """Degrees of freedom with which it is known."""

    def bound(self, chance: float) -> float:
        """Return what a healthy rank exceeds with this chance."""
        # Quantile of Student's distribution at the place of a normal quantile z (Wallace, 1959).
        scaled = NormalDist().inv_cdf(1.0 - chance) * (8.0 * self.freedom + 3.0) / (8.0 * self.freedom + 1.0)
        return self.sigma * math.sqrt(self.freedom * math.expm1(min(scaled**2 / self.freedom, 50.0)))


def lasting_spread(own: Floats, stage: Ints, noise: float, usual: float) -> Spread:
    """Return the spread of the levels of `own` (step, rank) around their stages.

    `noise` is that of one rank in one step, and `usual` the spread of healthy ranks elsewhere.
    """
    return _of_levels(_levels(own, stage), stage, _by_chance(noise, len(own)), usual)


def bounds(own: Floats, stage: Ints, noise: float, usual: float, chance: float) -> Floats:
    """Return by rank what a healthy one exceeds with this chance.

    A slow rank must not raise its own bound, so each is learnt from the others; where ranks are many, from
    all.
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
    """Return the variance of a level, which is a median over the steps: pi/2 times that of their mean."""
    return math.pi / 2.0 * noise**2 / steps


def _levels(own: Floats, stage: Ints) -> Floats:
    """Return by rank its median over the steps, less what its stage shares in each of them."""
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
