"""Ranks that compute more slowly than their peers, for long."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.arrays import Floats
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.peers import Residuals, against_peers
from rankwatch_diagnosis.straggler.persistence import Lasting, Scan, scan
from rankwatch_diagnosis.straggler.units import Units

_CLEAR = 4.0
"""In standard deviations of one step: from here on single steps tell slow from not slow."""
_MOST_TOLD = 64
"""Ranks in the evidence; a verdict may name more."""


def find_workers(case: Case, units: Units, difficulty: Difficulty) -> tuple[Finding | None, Scan]:
    """The finding, and the scan behind it."""
    residuals = against_peers(difficulty.own, units.stage, case.limits.peers)
    found = _scan(residuals, case)
    lasting = (_from_the_beginning(each, units) for each in found.found)
    found = found._replace(found=tuple(_without_whole_stages(tuple(lasting), units)))
    if not found.found:
        return find_odd_pair(case, units, difficulty), found
    named = sorted(found.found, key=lambda each: int(units.ranks[each.column]))
    ranks = tuple(int(units.ranks[each.column]) for each in named)
    confounded = _confounded(case, units, difficulty) or _whole_replica(units, named)
    finding = Finding(
        cause=Cause.INCONCLUSIVE if confounded else Cause.SLOW_RANK,
        phase=None if confounded else SlowPhase.COMPUTE,
        ideal=_ideal(case, units, named, residuals.values, found.noise),
        first_step=int(units.steps[min(each.first for each in named)]),
        ranks=() if confounded else ranks,
        lasts=max(each.end - each.first for each in named),
        evidence={
            ("suspected_ranks" if confounded else "slow_ranks"): [
                _told(each, units) for each in named[:_MOST_TOLD]
            ],
            "score_needed": found.level,
            "rank_step_noise_ratio": found.noise,
        }
        | ({"why": confounded} if confounded else {}),
    )
    return finding, found


def _scan(residuals: Residuals, case: Case) -> Scan:
    limits = case.limits
    return scan(
        residuals,
        limits,
        least_excess=math.log(limits.worker_ratio),
        least_spread=limits.healthy_spread,
    )


def _from_the_beginning(each: Lasting, units: Units) -> Lasting:
    """What is there after the first steps, which are unlike the others, was there before."""
    return each._replace(first=0) if units.unlike[: each.first].all() else each


def _without_whole_stages(found: tuple[Lasting, ...], units: Units) -> Iterator[Lasting]:
    """Where all ranks of a stage slow down, several of them, it is the stage that does."""
    sizes = {int(each): int(np.sum(units.stage == each)) for each in np.unique(units.stage)}
    slow = Counter(int(units.stage[each.column]) for each in found)
    for each in found:
        stage = int(units.stage[each.column])
        if sizes[stage] == 1 or slow[stage] < sizes[stage]:
            yield each


def _told(each: Lasting, units: Units) -> dict[str, object]:
    return {
        "rank": int(units.ranks[each.column]),
        "stage": int(units.stage[each.column]),
        "slower_by_ratio": math.expm1(each.excess),
        "score": each.score,
        "first_step": int(units.steps[each.first]),
        "last_step": int(units.steps[each.end - 1]),
    }


def _confounded(case: Case, units: Units, difficulty: Difficulty) -> str:
    """Why a slow rank may as well be one with long microbatches; empty where it cannot."""
    if difficulty.mates or units.work_log is not None:
        return ""
    limits = case.limits
    uneven = difficulty.sigma >= limits.difficulty_sigma and difficulty.share >= limits.difficulty_share
    if not uneven:
        return ""
    return "microbatches are unequal, no two ranks share one, and no work units tell them apart"


def _whole_replica(units: Units, named: list[Lasting]) -> str:
    """Why a slow replica may as well be one with long microbatches; empty where some of it is not."""
    if units.work_known:
        return ""
    slow = Counter(int(units.replica[each.column]) for each in named)
    sizes = Counter(units.replica.tolist())
    if len(sizes) > 1 and any(sizes[replica] == count > 1 for replica, count in slow.items()):
        return "all ranks of a replica are slow, and they share their microbatches"
    return ""


def _ideal(case: Case, units: Units, named: list[Lasting], residual: Floats, noise: float) -> Floats:
    """The culprits' compute, all of it, at its peers' value."""
    factor = np.ones((len(units.steps), len(units.ranks)))
    for each in named:
        active, excess = _episodes(each, residual[:, each.column], noise)
        like = np.flatnonzero(~units.unlike)
        nearest = like[np.searchsorted(like, np.flatnonzero(units.unlike)).clip(max=len(like) - 1)]
        active[units.unlike] = active[nearest]
        factor[active, each.column] = math.exp(-excess)
    ranks = units.ranks[[each.column for each in named]]
    rows = np.flatnonzero((case.table.kind == Kind.COMPUTE) & np.isin(case.table.rank, ranks))
    step = np.minimum(np.searchsorted(units.steps, case.table.step[rows]), len(units.steps) - 1)
    rank = np.searchsorted(units.ranks, case.table.rank[rows])
    ideal = case.seconds.copy()
    ideal[rows] *= factor[step, rank]
    return ideal


def _episodes(each: Lasting, residual: Floats, noise: float) -> tuple[NDArray[np.bool_], float]:
    """The steps in which the rank is slow, and by how much; it may come and go."""
    active = np.zeros(len(residual), dtype=np.bool_)
    if each.excess < _CLEAR * noise:
        active[each.first : each.end] = True
        return active, each.excess
    active = np.nan_to_num(residual) > each.excess / 2.0
    return active, float(np.median(residual[active]))


def find_odd_pair(case: Case, units: Units, difficulty: Difficulty) -> Finding | None:
    """Two ranks alone with their stage, of which one is slower: neither can be told to be the odd one."""
    pairs = [np.flatnonzero(units.stage == each) for each in np.unique(units.stage)]
    pairs = [pair for pair in pairs if len(pair) == 2 and case.limits.peers > 2]
    if not pairs:
        return None
    slow = [index for pair in pairs for index in pair]
    other = [index for pair in pairs for index in pair[::-1]]
    values = difficulty.own[:, slow] - difficulty.own[:, other]
    residuals = Residuals(values, np.zeros(len(slow)))
    found = _scan(residuals, case)
    if not found.found:
        return None
    suspects = [each._replace(column=int(slow[each.column])) for each in found.found]
    # (step, rank) again, for the ranks of pairs.
    of_ranks = np.zeros_like(difficulty.own)
    of_ranks[:, slow] = values
    return Finding(
        cause=Cause.INCONCLUSIVE,
        ideal=_ideal(case, units, suspects, of_ranks, found.noise),
        first_step=int(units.steps[min(each.first for each in suspects)]),
        evidence={
            "suspected_ranks": [_told(each, units) for each in suspects[:_MOST_TOLD]],
            "why": "of two ranks with one stage neither can be told to be the odd one",
        },
    )
