"""Ranks that compute more slowly than their peers, for long.

Each rank's own part of a step (see `difficulty`) less the median of its peers is scanned for windows that
last. Where a slow rank cannot be told from something else, the candidate is `inconclusive` and gives the
reason: a slow replica may have long microbatches, and of two ranks neither is the odd one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case, Ideal
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.group_by import Bools, Floats, Ints, factorize
from rankwatch_diagnosis.straggler.persistence import Excess, Residuals, Scan, against_peers, scan
from rankwatch_diagnosis.straggler.robust import nan_mean, nan_median
from rankwatch_diagnosis.straggler.visits import Visits

_CLEAR = 4.0
"""In standard deviations of one step: from here on single steps separate slow from not slow."""
_BLIP_COST = 0.005
"""Part of the run's compute: what cost the run less, and is over, is not named beside a slower rank."""
_BLIP_SHARE = 0.1
"""Of what the slowest rank cost; what is above is one of several slow ranks."""
_MOST_LISTED = 64
"""Ranks or replicas in the evidence; a verdict may name more."""
_WHOLE_REPLICA = "all ranks of a replica are slow, and they share their microbatches"


def find_slow_ranks(case: Case, visits: Visits, difficulty: Difficulty) -> tuple[list[Candidate], Scan]:
    """A candidate for each slow rank (one for all where none can be named), and the scan behind them."""
    residuals = against_peers(difficulty.own, visits.stage, case.limits.peers)
    found = _scan(residuals, case)
    lasting = tuple(_from_the_beginning(each, visits) for each in found.found)
    found = found._replace(found=tuple(_without_whole_stages(lasting, visits)))
    if not found.found:
        pair = _find_odd_pair(case, visits, difficulty)
        return [pair] if pair else [], found
    slow, blips = _without_blips(found.found, len(visits.steps), case.limits.steps)
    named = sorted(slow, key=lambda each: int(visits.ranks[each.column]))
    noise = {"score_needed": found.level, "rank_step_noise_ratio": found.noise}
    if blips:
        noise["past_blips"] = [_listed(each, visits) for each in blips[:_MOST_LISTED]]  # type: ignore[assignment]
    confounded = _confounded(case, visits, difficulty) or _whole_replica(visits, named)
    if confounded:
        return [_suspects(case, visits, named, residuals.values, found.noise, noise, confounded)], found
    return [_slow_rank(case, visits, each, residuals.values, found.noise, noise) for each in named], found


def _slow_rank(
    case: Case, visits: Visits, each: Excess, residual: Floats, level: float, noise: Mapping[str, object]
) -> Candidate:
    return Candidate(
        cause=Cause.SLOW_RANK,
        phase=SlowPhase.COMPUTE,
        ideal=_ideal(case, visits, [each], residual, level),
        first_step=int(visits.steps[each.first]),
        ranks=(int(visits.ranks[each.column]),),
        lasts=each.end - each.first,
        noise_to_size=level / each.size,
        evidence={"slow_ranks": [_listed(each, visits)], **noise},
    )


def _suspects(
    case: Case,
    visits: Visits,
    named: list[Excess],
    residual: Floats,
    level: float,
    noise: Mapping[str, object],
    why: str,
) -> Candidate:
    """Ranks that are slow, or whose microbatches are long."""
    return Candidate(
        cause=Cause.INCONCLUSIVE,
        ideal=_ideal(case, visits, named, residual, level),
        first_step=int(visits.steps[min(each.first for each in named)]),
        lasts=max(each.end - each.first for each in named),
        evidence={
            "suspected_ranks": [_listed(each, visits) for each in named[:_MOST_LISTED]],
            **noise,
            "why": why,
        },
    )


def _scan(residuals: Residuals, case: Case) -> Scan:
    limits = case.limits
    return scan(
        residuals,
        limits,
        least_excess=math.log(limits.rank_ratio),
        least_spread=limits.healthy_spread,
    )


def _from_the_beginning(each: Excess, visits: Visits) -> Excess:
    """What is there after the first, irregular steps was there before."""
    return each._replace(first=0) if visits.irregular[: each.first].all() else each


def _without_whole_stages(found: tuple[Excess, ...], visits: Visits) -> Iterator[Excess]:
    """Where all ranks of a stage slow down, and there are several, the stage does."""
    sizes = Counter(visits.stage.tolist())
    slow = Counter(int(visits.stage[each.column]) for each in found)
    for each in found:
        stage = int(visits.stage[each.column])
        if sizes[stage] == 1 or slow[stage] < sizes[stage]:
            yield each


def _without_blips(
    found: Sequence[Excess], steps: int, least_steps: int
) -> tuple[list[Excess], list[Excess]]:
    """The ranks to name, and those that were a little slow for a short while long ago beside a slower one.

    On a long real run healthy ranks have such episodes, too, for which nobody looks after a rank. What still
    goes on when the table ends may be the beginning of something, and is named however little it cost.
    """
    cost = [each.size * (each.end - each.first) / steps for each in found]
    least = min(_BLIP_COST, _BLIP_SHARE * max(cost))
    kept = [price >= least or each.end > steps - least_steps for each, price in zip(found, cost, strict=True)]
    blips = [each for each, keep in zip(found, kept, strict=True) if not keep]
    return [each for each, keep in zip(found, kept, strict=True) if keep], blips


def _listed(each: Excess, visits: Visits) -> dict[str, object]:
    return {
        "rank": int(visits.ranks[each.column]),
        "stage": int(visits.stage[each.column]),
        "slower_by_ratio": math.expm1(each.size),
        "score": each.score,
        "first_step": int(visits.steps[each.first]),
        "last_step": int(visits.steps[each.end - 1]),
    }


def _confounded(case: Case, visits: Visits, difficulty: Difficulty) -> str:
    """Why a slow rank may as well be one with long microbatches; empty where it cannot."""
    if difficulty.across_ranks or visits.work_log is not None:
        return ""
    limits = case.limits
    unequal = difficulty.sigma >= limits.difficulty_sigma and difficulty.share >= limits.difficulty_share
    if not unequal:
        return ""
    return "microbatches are unequal, no two ranks share one, and no work units tell them apart"


def _whole_replica(visits: Visits, named: list[Excess]) -> str:
    """Why a slow replica may as well be one with long microbatches; empty where not all of it is slow."""
    if visits.work_known:
        return ""
    slow = Counter(int(visits.replica[each.column]) for each in named)
    sizes = Counter(visits.replica.tolist())
    if len(sizes) > 1 and any(sizes[replica] == count > 1 for replica, count in slow.items()):
        return _WHOLE_REPLICA
    return ""


def _ideal(case: Case, visits: Visits, named: list[Excess], residual: Floats, noise: float) -> Ideal:
    """All compute of the slow ranks at their peers' value."""
    factor = np.ones((len(visits.steps), len(visits.ranks)))
    for each in named:
        active, excess = _episodes(each, residual[:, each.column], noise)
        regular = np.flatnonzero(~visits.irregular)
        nearest = regular[
            np.searchsorted(regular, np.flatnonzero(visits.irregular)).clip(max=len(regular) - 1)
        ]
        active[visits.irregular] = active[nearest]
        factor[active, each.column] = math.exp(-excess)
    slow = np.zeros(len(case.ranks), dtype=np.bool_)
    slow[np.searchsorted(case.ranks, visits.ranks[[each.column for each in named]])] = True
    rows = np.flatnonzero(slow[case.rank] & (case.table.kind == Kind.COMPUTE))
    step = np.minimum(np.searchsorted(visits.steps, case.table.step[rows]), len(visits.steps) - 1)
    rank = np.searchsorted(visits.ranks, case.table.rank[rows])
    changed = factor[step, rank] != 1.0
    rows = rows[changed]
    return Ideal(rows, case.seconds[rows] * factor[step, rank][changed])


def _episodes(each: Excess, residual: Floats, noise: float) -> tuple[Bools, float]:
    """The steps in which the rank is slow, and by how much; it may come and go."""
    active = np.zeros(len(residual), dtype=np.bool_)
    if each.size < _CLEAR * noise:
        active[each.first : each.end] = True
        return active, each.size
    active = np.nan_to_num(residual) > each.size / 2.0
    return active, float(np.median(residual[active]))


def _find_odd_pair(case: Case, visits: Visits, difficulty: Difficulty) -> Candidate | None:
    """Two ranks that alone hold a stage, one slower than the other: neither can be called the odd one."""
    pairs = [np.flatnonzero(visits.stage == each) for each in np.unique(visits.stage)]
    pairs = [pair for pair in pairs if len(pair) == 2 and case.limits.peers > 2]
    if not pairs:
        return None
    slow = [index for pair in pairs for index in pair]
    other = [index for pair in pairs for index in pair[::-1]]
    values = difficulty.own[:, slow] - difficulty.own[:, other]
    found = _scan(Residuals(values, np.zeros(len(slow))), case)
    if not found.found:
        return None
    suspects = [each._replace(column=int(slow[each.column])) for each in found.found]
    by_rank = np.zeros_like(difficulty.own)
    by_rank[:, slow] = values
    return Candidate(
        cause=Cause.INCONCLUSIVE,
        ideal=_ideal(case, visits, suspects, by_rank, found.noise),
        first_step=int(visits.steps[min(each.first for each in suspects)]),
        evidence={
            "suspected_ranks": [_listed(each, visits) for each in suspects[:_MOST_LISTED]],
            "why": "of two ranks, neither can be called the odd one",
        },
    )


def find_slow_replicas(case: Case, visits: Visits, difficulty: Difficulty) -> Candidate | None:
    """Replicas whose fastest rank lies above that of the others for long; None where work units are known.

    Their microbatches may as well be long, so no rank is named.
    """
    replica, replicas = factorize(visits.replica)
    if not difficulty.across_ranks or visits.work_known or len(replicas) < case.limits.peers:
        return None
    fastest = _fastest(visits, replica, len(replicas))
    one_stage = np.zeros(len(replicas), dtype=np.int64)
    found = _scan(against_peers(fastest, one_stage, case.limits.peers), case).found
    if not found:
        return None
    return Candidate(
        cause=Cause.INCONCLUSIVE,
        ideal=case.ideal(_ideal_of_replicas(case, visits, replica, found)),
        first_step=int(visits.steps[min(each.first for each in found)]),
        evidence={
            "suspected_replicas": [
                {
                    "replica": int(replicas[each.column]),
                    "ranks": visits.ranks[replica == each.column][:_MOST_LISTED].tolist(),
                    "slower_by_ratio": math.expm1(each.size),
                    "score": each.score,
                }
                for each in found[:_MOST_LISTED]
            ],
            "why": _WHOLE_REPLICA,
        },
    )


def _fastest(visits: Visits, replica: Ints, replicas: int) -> Floats:
    """(step, replica): the lowest mean logarithm of its ranks; NaN for a replica of one rank."""
    residuals = visits.residuals
    usual = nan_median(residuals.reshape(len(residuals), -1), axis=1)[:, None, None]
    own = nan_mean(residuals - usual, axis=2)
    fastest = np.full((replicas, len(own)), np.inf)
    np.minimum.at(fastest, replica, np.where(np.isfinite(own), own, np.inf).T)
    fastest[np.bincount(replica) < 2] = np.inf
    lowest: Floats = np.where(np.isinf(fastest), np.nan, fastest).T
    return lowest


def _ideal_of_replicas(case: Case, visits: Visits, replica: Ints, found: tuple[Excess, ...]) -> Floats:
    ideal = case.seconds.copy()
    for each in found:
        ranks = visits.ranks[replica == each.column]
        rows = (case.table.kind == Kind.COMPUTE) & np.isin(case.table.rank, ranks)
        rows &= np.isin(case.table.step, visits.steps[each.first : each.end])
        ideal[rows] *= math.exp(-each.size)
    return ideal
