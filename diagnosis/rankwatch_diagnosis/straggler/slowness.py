"""Which ranks compute more slowly than they should, in which steps, and by how much.

A rank is compared in three ways. Each has its own idea of what healthy ranks may show:

- with the median of the other ranks of its stage: as far as the accelerators of the job differ,
- with its own past or future: accelerators do not change, so little is allowed,
- of two ranks that alone hold a stage, the slower one with the other: as far as pairs of other stages differ,
  and by 10 % at least. No accelerator is much faster than its role allows, so the slower one is the odd one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, cumcount
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.persistence import (
    CLEAR,
    Excess,
    Residuals,
    Scan,
    Spread,
    against_past,
    against_peers,
    bounds,
    lasting_spread,
    noise_of,
    recurrent,
    scan,
)
from rankwatch_diagnosis.straggler.robust import nan_median, steady_mean
from rankwatch_diagnosis.straggler.thresholds import Thresholds
from rankwatch_diagnosis.straggler.visits import Visits

_BEYOND_NOISE = 3.0
"""In standard deviations. A step that differs by more from the other slow steps costs its own excess."""
_BEYOND_CHANCE = 2.5
"""Two standard errors of a median."""
_KNOWN = 1e6
"""Degrees of freedom of what is not learnt from the job."""


@dataclass(frozen=True, kw_only=True)
class Slowness:
    """All slow ranks, in the order of their columns."""

    found: tuple[Excess, ...]
    excess: Floats
    """(step, rank): logarithm of what the rank takes over what it should; 0 where it is not slow."""
    against_past: frozenset[int]
    """Columns of ranks that are compared with their own past."""
    noise: float
    """Standard deviation of one rank in one step."""
    level: float
    """The score that had to be passed."""
    compared: Comparisons
    """How they were found."""

    @property
    def spread(self) -> float:
        """Standard deviation of the lasting differences between healthy ranks."""
        return self.compared.spread.sigma


class Comparisons:
    """The ranks of a job against their peers, their past and their partners."""

    def __init__(
        self, visits: Visits, difficulty: Difficulty, limits: Thresholds, own: Floats | None = None
    ) -> None:
        """Compare ranks with their peers and their past.

        own: (step, rank), what is compared in place of the ranks' own part.
        """
        self.visits, self.difficulty, self.limits = visits, difficulty, limits
        self.own, self.stage = difficulty.own if own is None else own, visits.stage
        self.past = against_past(self.own, limits.peers)
        self.peers = against_peers(self.own, self.stage, limits.peers)
        self.chance = limits.healthy_false_alarm / self.own.shape[1]
        self.noise = noise_of(self.peers.values) or noise_of(self.past.values)
        self.spread = lasting_spread(self.own, self.stage, self.noise, limits.healthy_spread)
        # The median of few peers is uncertain itself.
        others = np.maximum(np.bincount(self.stage)[self.stage] - 1, 1)
        allowed = bounds(self.own, self.stage, self.noise, limits.healthy_spread, self.chance)
        allowed *= np.sqrt(1.0 + math.pi / 2.0 / others)
        self.peers = self.peers._replace(allowed=allowed)
        steady = Spread(limits.healthy_spread, _KNOWN).bound(self.chance)
        self.past = self.past._replace(allowed=np.full(self.own.shape[1], steady))

    def partners(self) -> Residuals:
        """Compare each rank with the other one of its stage; NaN where there is not exactly one."""
        values = np.full_like(self.own, np.nan)
        allowed = np.zeros(self.own.shape[1])
        for stage in np.flatnonzero(np.bincount(self.stage) == 2) if self.limits.peers > 2 else ():
            each, kept = np.flatnonzero(self.stage == stage), self.stage != stage
            values[:, each] = self.own[:, each] - self.own[:, each[::-1]]
            usual = self.limits.healthy_spread
            spread = lasting_spread(self.own[:, kept], self.stage[kept], self.noise, usual)
            allowed[each] = math.sqrt(2.0) * spread.bound(self.chance)
        return Residuals(values, np.zeros(self.own.shape[1]), allowed)


def find_slowness(compared: Comparisons) -> Slowness:
    """Compare every rank in all ways that apply to it."""
    visits, limits = compared.visits, compared.limits
    if len(visits.steps) < limits.steps:
        return _of_few_steps(compared)
    least = math.log(limits.rank_ratio)
    peers = scan(compared.peers, limits, least_excess=least)
    past = scan(compared.past, limits, least_excess=least)
    often = recurrent(compared.past, limits, least_excess=least)
    around_median = np.asarray(compared.past.values - nan_median(compared.past.values, axis=0)[None])
    chosen = {each.column: (each, around_median) for each in often.found}
    chosen |= {each.column: (each, compared.peers.values) for each in peers.found}
    by_past = set(chosen) - {each.column for each in peers.found}
    for each in past.found:
        if each.column not in chosen or _was_healthy(each, compared):
            chosen[each.column], own_level = _beside_its_level(each, compared)
            (by_past.add if own_level else by_past.discard)(each.column)
    chosen |= _slower_partners(compared, chosen)
    return _slowness(chosen, peers if math.isfinite(peers.level) else past, compared, by_past)


def _slower_partners(compared: Comparisons, known: Container[int]) -> dict[int, tuple[Excess, Floats]]:
    """Return those not known that are slower than the other rank of their stage by the ratio, if ranks share
    microbatches."""
    if not (compared.difficulty.across_ranks or compared.visits.work_known):
        return {}
    partners = compared.partners()
    pair = scan(partners, compared.limits, least_excess=math.log(compared.limits.pair_ratio))
    return {each.column: (each, partners.values) for each in pair.found if each.column not in known}


def find_suspects(named: Slowness) -> Slowness:
    """Find ranks that surely lie above their peers, but not beyond what accelerators of the job differ by."""
    compared = named.compared
    limits = compared.limits
    if len(compared.visits.steps) < limits.steps:
        return replace(named, found=())
    anything = compared.peers._replace(allowed=np.zeros(compared.own.shape[1]))
    above = scan(anything, limits, least_excess=math.log(limits.rank_ratio))
    known = {each.column for each in named.found}
    chosen = {each.column: (each, anything.values) for each in above.found if each.column not in known}
    return _slowness(chosen, above, compared)


def _of_few_steps(whole: Comparisons) -> Slowness:
    """Let the operations of a step take the place of steps: a slow rank is slow in most of them."""
    visits = whole.visits
    step, own = repeated(visits, whole.difficulty)
    least = replace(whole.limits, steps=whole.limits.repeats)
    compared = Comparisons(visits, whole.difficulty, least, own)
    peers = scan(compared.peers, least, least_excess=math.log(least.rank_ratio))
    found = {each.column: (each, compared.peers.values) for each in peers.found}
    found |= _slower_partners(compared, found)
    chosen: dict[int, tuple[Excess, Floats]] = {}
    for column, (each, values) in found.items():
        by_step = [values[step == index, column] for index in range(len(visits.steps))]
        active = np.array([np.mean(each.active[step == index]) > 0.5 for index in range(len(by_step))])
        if active.any():
            steps = np.flatnonzero(active)
            mean = np.full((len(by_step), own.shape[1]), np.nan)
            mean[:, column] = [float(steady_mean(part[np.isfinite(part)])) for part in by_step]
            in_steps = each._replace(active=active, first=int(steps[0]), end=int(steps[-1]) + 1)
            chosen[column] = (in_steps, mean)
    return _slowness(chosen, peers, whole)


def can_repeat(visits: Visits | None, limits: Thresholds) -> bool:
    """Return True if a step holds enough operations of each rank to be judged without others."""
    if visits is None:
        return False
    cell = Groups.by(visits.rows.step, visits.rows.rank)
    return bool(np.median(np.bincount(cell.number)) >= limits.repeats)


def repeated(visits: Visits, difficulty: Difficulty) -> tuple[Ints, Floats]:
    """Return the operations of all steps, one after the other: the step of each, and its residuals by rank.

    The n-th run of an operation in a step is the same work on all ranks of a stage.
    """
    rows = visits.rows
    cell = Groups.by(rows.step, rows.rank, rows.operation)
    run = cumcount(cell.number, np.argsort(rows.slot, kind="stable"))
    places = Groups.by(rows.step, rows.operation, run)
    values = np.full((places.count, len(visits.ranks)), np.nan)
    foreseen = difficulty.predicted[rows.step, rows.rank, rows.slot]
    values[places.number, rows.rank] = visits.residual_of_row - foreseen
    return places.first(rows.step), values


def find_odd_pairs(compared: Comparisons) -> Slowness:
    """Find, of two ranks that alone hold a stage, the slower one, however little it is."""
    partners = compared.partners()
    pair = scan(partners, compared.limits, least_excess=math.log(compared.limits.rank_ratio))
    return _slowness({each.column: (each, partners.values) for each in pair.found}, pair, compared)


def _was_healthy(each: Excess, compared: Comparisons) -> bool:
    """Return True if the rank was like its peers when not slow: then its own past is what it should take."""
    before = float(np.nan_to_num(nan_median(compared.peers.values[~each.active, each.column])))
    return before <= max(math.log(compared.limits.rank_ratio), float(compared.peers.allowed[each.column]))


def _beside_its_level(each: Excess, compared: Comparisons) -> tuple[tuple[Excess, Floats], bool]:
    """Return a rank against its peers, less how it differs from them when it is not slow; and if it does
    differ.

    All other steps tell its level better than the ends of the run. A difference that may be chance is none.
    """
    values = compared.peers.values
    before = values[~each.active & np.isfinite(values[:, each.column]), each.column]
    if not before.size:
        return (each, compared.past.values), True
    level = float(np.median(before))
    differs = abs(level) > _BEYOND_CHANCE * compared.noise / math.sqrt(before.size)
    values = values - level * differs
    return (each._replace(size=float(nan_median(values[each.active, each.column]))), values), differs


def _slowness(
    chosen: Mapping[int, tuple[Excess, Floats]],
    judged: Scan,
    compared: Comparisons,
    by_past: Set[int] = frozenset(),
) -> Slowness:
    visits = compared.visits
    named = [(_also_irregular(each, visits.irregular), values) for each, values in chosen.values()]
    kept = {each.column for each in _without_whole_stages([each for each, _ in named], visits.stage)}
    named = sorted((pair for pair in named if pair[0].column in kept), key=lambda pair: pair[0].column)
    excess = np.zeros_like(compared.own)
    for each, values in named:
        excess[:, each.column] = _by_step(each, values[:, each.column], judged.noise)
    return Slowness(
        found=tuple(each for each, _ in named),
        excess=excess,
        against_past=frozenset(by_past & kept),
        noise=judged.noise,
        level=judged.level,
        compared=compared,
    )


def _also_irregular(each: Excess, irregular: Bools) -> Excess:
    """Take the rank to be as in the nearest other step in irregular ones, which are not compared."""
    regular = np.flatnonzero(~irregular)
    if len(regular) in (0, len(irregular)):
        return each
    active = each.active.copy()
    nearest = regular[np.searchsorted(regular, np.flatnonzero(irregular)).clip(max=len(regular) - 1)]
    active[irregular] = active[nearest]
    steps = np.flatnonzero(active)
    return each._replace(active=active, first=int(steps[0]), end=int(steps[-1]) + 1)


def _without_whole_stages(found: Sequence[Excess], stage: Ints) -> Iterator[Excess]:
    """Leave out the ranks of a stage that has several, all slow in the same steps: the stage is slow."""
    for each in found:
        home = [other for other in found if stage[other.column] == stage[each.column]]
        together = np.logical_and.reduce([other.active for other in home])
        whole = len(home) == np.count_nonzero(stage == stage[each.column]) > 1
        if not (whole and 2 * np.count_nonzero(together) > each.steps):
            yield each


def _by_step(each: Excess, residual: Floats, noise: float) -> Floats:
    """Return by step the rank's excess, so that the sum over the steps is what it lost."""
    excess = np.zeros(len(residual))
    seen = residual[each.active & np.isfinite(residual)]
    if each.size < CLEAR * noise:
        excess[each.active] = max(0.0, float(steady_mean(seen)))
        return excess
    own = np.where(np.isfinite(residual), residual, each.size)
    alike = each.active & (np.abs(own - each.size) <= _BEYOND_NOISE * noise)
    excess[each.active] = own[each.active]
    excess[alike] = float(np.mean(own[alike])) if alike.any() else 0.0
    return excess


def without(visits: Visits, slowness: Slowness) -> Visits:
    """Return the visits as if no rank was slow, to look for what else there is."""
    if not slowness.found:
        return visits
    return replace(visits, halves=visits.halves - slowness.excess[None, :, :, None])
