"""Which part of a visit's duration belongs to the microbatch, and what is left for the rank.

The ranks of one replica work on the same microbatches, so what they share is the microbatch's. The difficulty
that a rank meets is predicted from its mates alone, shrunk by how well they predict it: with unequal batches
this is a comparison inside the replica, with equal ones the rank's own time stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankwatch_diagnosis.straggler.arrays import (
    Floats,
    Ints,
    codes,
    leave_one_out_median,
    nan_mean,
    nan_median,
    sigma,
    steady_mean,
)
from rankwatch_diagnosis.straggler.units import Units

_MOST = 1.0
"""Logarithms beyond this count as this much in variances, so that one giant does not decide alone."""
_CHANCE = 3.0
"""Standard deviations: what goes beyond is not chance."""


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """How unequal microbatches are, and how that is known."""

    sigma: float
    """Standard deviation of the logarithm, shared by ranks or operations; 0 where none is seen."""
    share: float
    """Part of the variance of a visit that the microbatch explains, 0..1."""
    mates: bool
    """Seen by several ranks that share microbatches; otherwise only by the operations of one rank."""
    of_visit: Floats
    """(step, rank, microbatch): the best estimate for each visit."""
    to_even: Floats
    """(step, rank, microbatch): what must go so that microbatches are even and noise stays as wide as it is.

    The best estimate takes noise away with the difficulty, and the slowest of many ranks would be too fast.
    """
    own: Floats
    """(step, rank): the steady mean of the logarithms of a rank's visits less what its mates predict."""


def separate(units: Units) -> Difficulty:
    """Split visits into difficulty and what is the rank's own."""
    visits = units.visits
    usual = nan_median(visits.reshape(len(visits), -1), axis=1)[:, None, None]
    visits, halves = visits - usual, units.halves - usual
    levels = np.nan_to_num(nan_median(np.moveaxis(visits, 1, 0).reshape(visits.shape[1], -1), axis=1))
    level: Floats = levels[None, :, None]
    replicas, replica = codes(units.replica)
    sizes = np.bincount(replica)
    if len(replicas) < 2 or sizes.max() < 2:
        return _by_operations(halves, visits, level)
    if units.work_known:
        # What a replica has to do in a step is told, so what its ranks share from step to step is theirs.
        return _by_mates(halves, visits, level, replica, sizes, inside_steps=True)
    return _by_mates(halves, visits, level, replica, sizes)


def _by_mates(
    halves: Floats, visits: Floats, level: Floats, replica: Ints, sizes: Ints, *, inside_steps: bool = False
) -> Difficulty:
    members = _members(replica, sizes)
    nobody = np.full_like(visits[:, :1], np.nan)
    if inside_steps:
        visits, level = visits - nan_mean(visits, axis=2)[..., None], np.zeros(1)
    together = np.concatenate([visits, nobody], axis=1)[:, members, :]  # (step, replica, member, microbatch)
    # What lasts on a rank is not the microbatch's.
    centred = np.concatenate([visits - level, nobody], axis=1)[:, members, :]
    shared = _covariance(nan_mean(centred[:, :, 0::2], axis=2), nan_mean(centred[:, :, 1::2], axis=2))
    inside = centred - nan_mean(centred, axis=2)[:, :, None]
    mates = sizes[replica].astype(np.float64)[None, :, None]
    freedom = float(np.mean(1.0 - 1.0 / sizes[sizes > 1]))
    noise = sigma(inside[np.isfinite(inside)]) ** 2 / max(freedom, 0.5)
    predicted = np.empty((visits.shape[0], visits.shape[1] + 1, visits.shape[2]))
    # Not centred: a level of its own that a replica has by its batches is taken away with them.
    predicted[:, members, :] = leave_one_out_median(together, axis=2)
    # The median of many mates has pi/2 times the variance of their mean.
    spread = np.where(mates > 3.0, math.pi / 2.0, 1.0) * noise / np.maximum(mates - 1.0, 1.0)
    trust = np.where(mates > 1.0, shared / np.maximum(shared + spread, 1e-18), 0.0)
    whole = np.empty_like(predicted)
    whole[:, members, :] = nan_median(together, axis=2)[:, :, None]
    of_visit = np.nan_to_num(whole[:, :-1, :]) * trust
    return Difficulty(
        sigma=math.sqrt(shared),
        share=shared / max(shared + noise, 1e-18),
        mates=True,
        of_visit=of_visit,
        to_even=of_visit,
        own=_own(halves - trust * np.nan_to_num(predicted[:, :-1, :])),
    )


def _own(halves: Floats) -> Floats:
    """(step, rank): a slow rank is slow in all operations of a step; a single late one is an event."""
    return steady_mean(np.concatenate([halves[0], halves[1]], axis=2))


def _by_operations(of_operations: Floats, visits: Floats, level: Floats) -> Difficulty:
    """One rank for each microbatch: forward and backward share it, and so do the causes of rank and step."""
    halves = of_operations - level[None]
    if visits.shape[2] >= 3:
        # A late rank is late in all the microbatches of a step: take that out, so that batches remain.
        halves = halves - nan_median(halves, axis=3)[..., None]
        shared = _covariance(halves[0], halves[1])
    else:
        # Few late rank-steps must not pass for unequal batches, so the bulk decides, not the tail.
        shared = _covariance_of_the_bulk(halves[0], halves[1])
    total = sigma(halves[0]) ** 2 / 2.0 + sigma(halves[1]) ** 2 / 2.0
    share = min(1.0, shared / max(total, shared, 1e-18))
    # A visit is the mean of two halves: half the noise of one.
    trust = 2.0 * share / (1.0 + share)
    return Difficulty(
        sigma=math.sqrt(shared),
        share=share,
        mates=False,
        of_visit=np.nan_to_num(visits - level) * trust,
        to_even=_to_even(of_operations, visits, level),
        own=_own(of_operations),
    )


def _to_even(halves: Floats, visits: Floats, level: Floats) -> Floats:
    """A visit less the noise that belongs to it, borrowed from another rank.

    In what the halves of a visit differ there is noise alone, as much of it as in their mean. What goes
    beyond noise is a delay of one operation, and no microbatch's: it stays where it is. A rank's own level
    stays with the rank as far as it is more than chance (the garrote of Breiman, 1995): with unequal batches
    the level of few steps is mostly chance.
    """
    differ = (halves[0] - halves[1]) / 2.0
    differ = (
        differ - nan_median(np.moveaxis(differ, 1, 0).reshape(differ.shape[1], -1), axis=1)[None, :, None]
    )
    bound = _CHANCE * sigma(differ)
    delay = np.maximum(np.abs(differ) - bound, 0.0)
    borrowed = np.roll(np.clip(differ, -bound, bound), 1, axis=1)
    count = np.maximum(np.isfinite(visits).sum(axis=(0, 2)), 1)[None, :, None]
    chance = _CHANCE * math.sqrt(math.pi / 2.0) * sigma(visits - level) / np.sqrt(count)
    kept = np.where(np.abs(level) > chance, level - chance**2 / np.where(level == 0.0, 1.0, level), 0.0)
    to_even: Floats = np.nan_to_num(visits - kept) - np.nan_to_num(delay) - np.nan_to_num(borrowed)
    return to_even


def _members(replica: Ints, sizes: Ints) -> Ints:
    """(replica, member): index of each rank, and one beyond the last where a replica has fewer."""
    members = np.full((len(sizes), int(sizes.max())), len(replica), dtype=np.int64)
    order = np.argsort(replica, kind="stable")
    first = np.cumsum(sizes) - sizes
    members[replica[order], np.arange(len(replica)) - first[replica[order]]] = order
    return members


def _covariance(one: Floats, other: Floats) -> float:
    """Of two measurements of the same thing with independent noise: the variance of the thing, at least 0."""
    both = np.isfinite(one) & np.isfinite(other)
    if np.count_nonzero(both) < 8:
        return 0.0
    left, right = (np.clip(each[both], -_MOST, _MOST) for each in (one, other))
    covariance = float(np.mean((left - left.mean()) * (right - right.mean())))
    # Below twice its own standard error it is noise.
    error = float(left.std() * right.std()) / math.sqrt(left.size)
    return covariance if covariance > 2.0 * error else 0.0


def _covariance_of_the_bulk(one: Floats, other: Floats) -> float:
    """The same by medians: var(x + y) - var(x - y) is four times it (Gnanadesikan and Kettenring, 1972)."""
    both = np.isfinite(one) & np.isfinite(other)
    if np.count_nonzero(both) < 8:
        return 0.0
    left, right = one[both], other[both]
    sum_variance, difference_variance = sigma(left + right) ** 2, sigma(left - right) ** 2
    covariance = (sum_variance - difference_variance) / 4.0
    # 2.33 / sqrt(n) is the relative standard error of a variance by the MAD.
    error = 2.33 * math.hypot(sum_variance, difference_variance) / 4.0 / math.sqrt(left.size)
    return covariance if covariance > 2.0 * error else 0.0
