"""Ranks that lie above their peers for long: a scan over windows of steps, with a level fixed in advance.

A window of n steps of one rank scores

    score = sum of clipped residuals / sqrt(noise^2 n + (lasting error n)^2)

and counts if it passes the quantile of the normal distribution at 1 - false_alarm / (number of windows and
ranks).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.straggler.group_by import Floats, Ints
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
"""What passes the clipping, in units of the level that the spread among ranks demands."""
_LEAST_RANKS_FOR_SPREAD = 8
"""With fewer ranks the spread among healthy ones cannot be told from a slow one."""
_LEAST_SEEN = 0.75
"""Part of a window that must not be gaps."""


class Residuals(NamedTuple):
    """What is left of each rank when its peers are taken away."""

    values: Floats
    """(step, rank); NaN where there is no peer to compare with."""
    reference_error: Floats
    """By rank: standard error of what it is compared with, in units of one step's noise."""


class Excess(NamedTuple):
    """One rank that lies above its peers for long."""

    column: int
    """Index of the rank."""
    first: int
    """Index of the first step."""
    end: int
    """Index behind the last step."""
    size: float
    """Median over the window, in the unit of the residuals."""
    score: float
    """Standard deviations above what noise gives."""


class Scan(NamedTuple):
    """All ranks with a lasting excess, and the level they had to pass."""

    found: tuple[Excess, ...]
    noise: float
    """Standard deviation of one rank in one step."""
    level: float
    """The score that noise passes with the chance of a false alarm."""


def against_peers(own: Floats, stage: Ints, least_peers: int) -> Residuals:
    """Each rank less the median of the other ranks of its stage in the same step. `own` is (step, rank).

    In a stage with fewer than `least_peers` ranks the level is no evidence. Such a rank is compared with the
    faster one of its own past and future, so that only what begins or ends inside the run is seen.
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


def scan(residuals: Residuals, limits: Thresholds, *, least_excess: float, least_spread: float = 0.0) -> Scan:
    """Ranks whose residual exceeds `least_excess` for at least `limits.steps` steps.

    `least_spread` is the standard deviation of lasting differences between healthy ranks, as far as it is
    known without the table. Both are in the unit of the residuals.
    """
    residual = residuals.values
    steps, ranks = residual.shape
    noise = _noise(residual)
    if steps < limits.steps or noise <= 0.0:
        return Scan(found=(), noise=noise, level=math.inf)
    lengths = _lengths(limits.steps, steps)
    # Windows of one length that overlap are one test; the dyadic lengths are a few more.
    tests = ranks * sum(2 * steps / length for length in lengths)
    level = NormalDist().inv_cdf(1.0 - limits.false_alarm / tests)
    spread = max(_spread(residual, noise), least_spread)
    # The more healthy ranks differ for long, the more of a residual must get through the clipping.
    bound = _CLIP * noise + _ROOM * level * spread
    lasting_error = np.hypot(spread, noise * residuals.reference_error)
    clipped = np.clip(residual, -bound, bound)
    usual, tails = _tails(clipped)
    best = _best_scores(clipped - usual, lengths, max(noise, tails), lasting_error)
    suspects = np.flatnonzero(best > level)
    found = (
        _window(residual[:, index], int(index), float(best[index]), noise, limits.steps) for index in suspects
    )
    lasting = tuple(
        each
        for each in found
        if each is not None
        and each.size >= least_excess
        and _persists(residual[each.first : each.end, each.column], limits)
    )
    return Scan(found=lasting, noise=noise, level=level)


def _noise(residual: Floats) -> float:
    """Of one rank in one step, widened by its own uncertainty and by what carries over from step to step."""
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


def _spread(residual: Floats, noise: float) -> float:
    """Standard deviation of the lasting differences between healthy ranks."""
    steps, ranks = residual.shape
    if ranks < _LEAST_RANKS_FOR_SPREAD:
        return 0.0
    clipped = np.clip(residual, -_CLIP * noise, _CLIP * noise)
    means = np.nan_to_num(clipped).sum(axis=0) / np.maximum(np.isfinite(clipped).sum(axis=0), 1)
    return math.sqrt(max(sigma(means) ** 2 - noise**2 / steps, 0.0))


def _tails(clipped: Floats) -> tuple[float, float]:
    """Mean and standard deviation of a healthy rank's steps, single late ones included.

    Where ranks are often late in turn, one of them is late several times in a row by chance alone. The
    quarter of the ranks that varies most is left out: they may have become slow inside the run.
    """
    steps, ranks = clipped.shape
    if ranks < _LEAST_RANKS_FOR_SPREAD:
        return 0.0, 0.0
    means = nan_mean(clipped, axis=0)
    variances = nan_mean((clipped - means[None]) ** 2, axis=0) * steps / (steps - 1)
    calm = np.sort(variances[np.isfinite(variances)])[: max(1, ranks - ranks // 4)]
    usual = max(0.0, float(np.nan_to_num(nan_median(means))))
    return usual, math.sqrt(float(calm.mean())) if calm.size else 0.0


def _lengths(least: int, steps: int) -> list[int]:
    """Lengths of windows: from the shortest one to all steps, each about sqrt(2) times the one before."""
    lengths = [steps]
    length = float(least)
    while length < steps:
        lengths.append(int(length))
        length *= math.sqrt(2.0)
    return sorted(set(lengths))


def _best_scores(clipped: Floats, lengths: list[int], noise: float, lasting_error: Floats) -> Floats:
    """By rank: the highest score of all windows."""
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


def _window(residual: Floats, index: int, score: float, noise: float, least: int) -> Excess | None:
    """The stretch with the largest sum above half the effect: the likeliest window of a change of level."""
    clipped = np.nan_to_num(np.clip(residual, -4.0 * noise, 4.0 * noise))
    half = noise / 2.0
    first, end = 0, len(clipped)
    for _ in range(3):  # the effect depends on the window, and the window on the effect
        first, end = largest_stretch(clipped - half)
        if end - first < least:
            return None
        half = min(float(nan_median(residual[first:end])), 4.0 * noise) / 2.0
    size = float(nan_median(residual[first:end]))
    return Excess(column=index, first=first, end=end, size=size, score=score)


def _persists(window: Floats, limits: Thresholds) -> bool:
    seen = window[np.isfinite(window)]
    return seen.size >= limits.steps - 1 and float(np.mean(seen > 0.0)) >= limits.rank_persistence
