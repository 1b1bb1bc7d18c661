"""How much of a visit's duration belongs to the microbatch, and what is left for the rank.

The ranks of one replica work on the same microbatches, so what their visits share is the microbatch's
difficulty:

    residual(step, rank, microbatch) = difficulty(step, replica, microbatch) + own(step, rank) + noise

The difficulty that a rank meets is predicted from the *other* ranks of its replica and shrunk by how well
they agree. With unequal batches this compares ranks inside the replica; with equal ones the rank's time stays
as it is. Where every replica is one rank, forward and backward of a microbatch take the place of the other
ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Ints, cumcount, factorize
from rankwatch_diagnosis.straggler.robust import (
    leave_one_out_median,
    nan_mean,
    nan_median,
    sigma,
    steady_mean,
)
from rankwatch_diagnosis.straggler.thresholds import Thresholds
from rankwatch_diagnosis.straggler.visits import Visits

_MOST = 1.0
"""Logarithms are clipped here before a variance is taken, so that one giant does not decide alone."""
_CHANCE = 3.0
"""Standard deviations beyond which a difference is not chance."""
_FAR = 6.0
"""The same, beyond which a microbatch cannot be that long."""
_LEAST_STEPS = 8
"""Steps from which on it is known what an operation usually takes on a rank."""
_LEAST_PAIRS = 8
"""For a covariance."""


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """How unequal microbatches are, and how that is known."""

    sigma: float
    """Standard deviation of the logarithm that ranks or operations share; 0 where they share nothing."""
    share: float
    """Part of the variance of a visit that the microbatch explains, 0..1."""
    across_ranks: bool
    """Known from several ranks that share microbatches; otherwise only from the operations of one rank."""
    of_visit: Floats
    """(step, rank, slot): the best estimate for each visit."""
    to_even: Floats
    """(step, rank, slot): what to take away so that microbatches are even and noise stays as wide as it is.

    The best estimate takes noise away with the difficulty, and the slowest of many ranks would be too fast.
    """
    predicted: Floats
    """(step, rank, slot): what the others of the replica tell of a visit; 0 where they tell nothing."""
    own: Floats
    """(step, rank): steady mean of a rank's residuals less the difficulty predicted for them."""

    def is_unequal(self, limits: Thresholds) -> bool:
        """Return True if microbatches differ by so much that it counts."""
        return self.sigma >= limits.difficulty_sigma and self.share >= limits.difficulty_share


def separate(visits: Visits) -> Difficulty:
    """Split the residuals of visits into the difficulty of microbatches and the rank's own part."""
    residuals = visits.residuals
    usual = nan_median(residuals.reshape(len(residuals), -1), axis=1)[:, None, None]
    residuals, halves = residuals - usual, visits.halves - usual
    by_rank = np.moveaxis(residuals, 1, 0).reshape(residuals.shape[1], -1)
    level: Floats = np.nan_to_num(nan_median(by_rank, axis=1))[None, :, None]
    replica, replicas = factorize(visits.replica)
    sizes = np.bincount(replica)
    if len(replicas) < 2 or sizes.max() < 2:
        return _across_operations(halves, residuals, level)
    if visits.work_known:
        # The work of a replica in a step is known, so what its ranks share from step to step is their own.
        return _across_ranks(halves, residuals, level, replica, sizes, inside_steps=True)
    return _across_ranks(halves, residuals, level, replica, sizes)


def _across_ranks(
    halves: Floats,
    residuals: Floats,
    level: Floats,
    replica: Ints,
    sizes: Ints,
    *,
    inside_steps: bool = False,
) -> Difficulty:
    """Take what ranks of a replica share as the microbatch's: shared / (shared + noise of the prediction)."""
    # (replica, member): index of each rank, and one beyond the last where a replica has fewer.
    members = np.full((len(sizes), int(sizes.max())), len(replica), dtype=np.int64)
    members[replica, cumcount(replica)] = np.arange(len(replica))
    nobody = np.full_like(residuals[:, :1], np.nan)
    if inside_steps:
        residuals, level = residuals - nan_mean(residuals, axis=2)[..., None], np.zeros(1)
    together = np.concatenate([residuals, nobody], axis=1)[:, members, :]  # (step, replica, member, slot)
    # What lasts on a rank is not the microbatch's.
    centred = np.concatenate([residuals - level, nobody], axis=1)[:, members, :]
    shared = _covariance(nan_mean(centred[:, :, 0::2], axis=2), nan_mean(centred[:, :, 1::2], axis=2))
    inside = centred - nan_mean(centred, axis=2)[:, :, None]
    peers = sizes[replica].astype(np.float64)[None, :, None]
    freedom = float(np.mean(1.0 - 1.0 / sizes[sizes > 1]))
    noise = sigma(inside[np.isfinite(inside)]) ** 2 / max(freedom, 0.5)
    predicted = np.empty((residuals.shape[0], residuals.shape[1] + 1, residuals.shape[2]))
    # Not centred: a level that a replica owes to its batches is taken away with them.
    predicted[:, members, :] = leave_one_out_median(together, axis=2)
    # The median of many peers has pi/2 times the variance of their mean.
    spread = np.where(peers > 3.0, math.pi / 2.0, 1.0) * noise / np.maximum(peers - 1.0, 1.0)
    trust = np.where(peers > 1.0, shared / np.maximum(shared + spread, 1e-18), 0.0)
    steady = np.concatenate([residuals - _beyond_chance(level, residuals), nobody], axis=1)[:, members, :]
    of_visit, to_even = (
        np.nan_to_num(_shared(each, members, predicted.shape)) * trust for each in (together, steady)
    )
    # A peer that is far off is slow itself, and tells nothing of the microbatch.
    bound = _FAR * np.sqrt(shared + spread)
    foreseen = trust * np.clip(np.nan_to_num(predicted[:, :-1, :]), -bound, bound)
    return Difficulty(
        sigma=math.sqrt(shared),
        share=shared / max(shared + noise, 1e-18),
        across_ranks=True,
        of_visit=of_visit,
        to_even=to_even,
        predicted=foreseen,
        own=_own(halves - foreseen),
    )


def _shared(by_member: Floats, members: Ints, shape: tuple[int, ...]) -> Floats:
    """Return by (step, rank, slot) the median over the ranks of a replica."""
    shared = np.empty(shape)
    shared[:, members, :] = nan_median(by_member, axis=2)[:, :, None]
    return shared[:, :-1, :]


def _own(halves: Floats) -> Floats:
    """Return by (step, rank) what is the rank's own.

    A slow rank is slow in all operations of a step, or in the same ones of most steps, as where its host
    falls behind between two waits; a single late one is an event.
    """
    values = np.concatenate([halves[0], halves[1]], axis=2)
    if len(values) < _LEAST_STEPS:
        return steady_mean(values)
    usual = nan_median(values, axis=0)[None]
    return steady_mean(values - usual) + nan_mean(np.where(np.isfinite(values), usual, np.nan), axis=2)


def _across_operations(of_operations: Floats, residuals: Floats, level: Floats) -> Difficulty:
    """Separate the difficulty where each microbatch has one rank.

    Forward and backward share it, and so do the causes of rank and step.
    """
    halves = of_operations - level[None]
    if residuals.shape[2] >= 3:
        # A late rank is late in all microbatches of a step: take that out, so that batches remain.
        halves = halves - nan_median(halves, axis=3)[..., None]
        shared = _covariance(halves[0], halves[1])
    else:
        # A few late steps of ranks must not pass for unequal batches, so the bulk decides, not the tail.
        shared = _covariance_of_the_bulk(halves[0], halves[1])
    total = sigma(halves[0]) ** 2 / 2.0 + sigma(halves[1]) ** 2 / 2.0
    share = min(1.0, shared / max(total, shared, 1e-18))
    # A visit is the mean of two halves: half the noise of one.
    trust = 2.0 * share / (1.0 + share)
    return Difficulty(
        sigma=math.sqrt(shared),
        share=share,
        across_ranks=False,
        of_visit=np.nan_to_num(residuals - level) * trust,
        to_even=_to_even(of_operations, residuals, level),
        predicted=np.zeros_like(residuals),
        own=_own(of_operations),
    )


def _to_even(halves: Floats, residuals: Floats, level: Floats) -> Floats:
    """Return a visit less the noise that belongs to it, borrowed from another rank.

    The halves of a visit differ by noise alone, as much of it as there is in their mean. What goes beyond
    noise is a delay of one operation, not of a microbatch, and stays where it is.
    """
    differ = (halves[0] - halves[1]) / 2.0
    by_rank = np.moveaxis(differ, 1, 0).reshape(differ.shape[1], -1)
    differ = differ - nan_median(by_rank, axis=1)[None, :, None]
    bound = _CHANCE * sigma(differ)
    delay = np.maximum(np.abs(differ) - bound, 0.0)
    borrowed = np.roll(np.clip(differ, -bound, bound), 1, axis=1)
    kept = _beyond_chance(level, residuals)
    to_even: Floats = np.nan_to_num(residuals - kept) - np.nan_to_num(delay) - np.nan_to_num(borrowed)
    return to_even


def _beyond_chance(level: Floats, residuals: Floats) -> Floats:
    """Return (1, rank, 1): a rank's own level as far as beyond chance (the garrote of Breiman, 1995).

    With unequal batches the level of few steps is mostly chance.
    """
    if level.ndim < 3:  # levels have been taken out
        return np.zeros((1, 1, 1))
    count = np.maximum(np.isfinite(residuals).sum(axis=(0, 2)), 1)[None, :, None]
    chance = _CHANCE * math.sqrt(math.pi / 2.0) * sigma(residuals - level) / np.sqrt(count)
    return np.where(np.abs(level) > chance, level - chance**2 / np.where(level == 0.0, 1.0, level), 0.0)


def _covariance(one: Floats, other: Floats) -> float:
    """Return the variance of a thing measured twice: cov(x, y), or 0 below twice its standard error."""
    both = np.isfinite(one) & np.isfinite(other)
    if np.count_nonzero(both) < _LEAST_PAIRS:
        return 0.0
    left, right = (np.clip(each[both], -_MOST, _MOST) for each in (one, other))
    covariance = float(np.mean((left - left.mean()) * (right - right.mean())))
    error = float(left.std() * right.std()) / math.sqrt(left.size)
    return covariance if covariance > 2.0 * error else 0.0


def _covariance_of_the_bulk(one: Floats, other: Floats) -> float:
    """Return the same by medians: (var(x + y) - var(x - y)) / 4 (Gnanadesikan and Kettenring, 1972)."""
    both = np.isfinite(one) & np.isfinite(other)
    if np.count_nonzero(both) < _LEAST_PAIRS:
        return 0.0
    left, right = one[both], other[both]
    sum_variance, difference_variance = sigma(left + right) ** 2, sigma(left - right) ** 2
    covariance = (sum_variance - difference_variance) / 4.0
    # 2.33 / sqrt(n) is the relative standard error of a variance by the MAD.
    error = 2.33 * math.hypot(sum_variance, difference_variance) / 4.0 / math.sqrt(left.size)
    return covariance if covariance > 2.0 * error else 0.0
