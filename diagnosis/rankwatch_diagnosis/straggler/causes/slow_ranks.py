"""Ranks that compute more slowly than their peers, for long or again and again.

Where a slow rank cannot be told from something else, the candidate is `inconclusive` and gives the reason: a
slow replica may have long microbatches, and of two ranks that differ a little neither is the odd one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, factorize
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case, Ideal
from rankwatch_diagnosis.straggler.difficulty import Difficulty
from rankwatch_diagnosis.straggler.persistence import Excess, against_peers, bounds, noise_of, scan
from rankwatch_diagnosis.straggler.robust import nan_mean, nan_median, sigma
from rankwatch_diagnosis.straggler.slowness import (
    Comparisons,
    Slowness,
    find_odd_pairs,
    find_slowness,
    find_suspects,
)
from rankwatch_diagnosis.straggler.visits import Visits

_BLIP_COST = 0.005
"""Part of the run's compute: what cost the run less, and is over, is not named beside a slower rank."""
_BLIP_SHARE = 0.1
"""Share of what the slowest rank cost; what is above is one of several slow ranks."""
_WITHIN_THE_SPREAD = "accelerators of this job differ by as much"
_MOST_SUSPECTED = 8
_MOST_LISTED = 64
"""Ranks in the evidence; a verdict may name more."""
_STANDARD_ERRORS = 3.0
"""By which one operation must differ from the others to have an excess of its own."""
_MOST_TIMES = 16.0
"""Excess of one operation over that of all: more is a wild estimate."""
_LEAST_OF_PLACE = 12
"""Runs of an operation for one microbatch, from which on they have an excess of their own."""
_WHOLE_REPLICA = "all ranks of a replica are slow, and they share their microbatches"


def find_slow_ranks(case: Case, visits: Visits, difficulty: Difficulty) -> tuple[list[Candidate], Slowness]:
    """Return a candidate per slow rank (one for all where none can be named), and what is behind them."""
    compared = Comparisons(visits, difficulty, case.limits)
    slowness = find_slowness(compared)
    if not slowness.found:
        # Of two ranks that alone hold a stage, one may be a little slower than the other.
        pairs = find_odd_pairs(compared)
        why = {"why": "of two ranks, neither can be called the odd one"}
        costs = _Costs(case, visits, pairs)
        return [_suspects(pairs.found, visits, costs, why)] if pairs.found else [], slowness
    named, blips = _without_blips(slowness.found, len(visits.steps), case.limits.steps)
    facts: dict[str, object] = {
        "score_needed": slowness.level,
        "rank_step_noise_ratio": slowness.noise,
        "healthy_spread_ratio": slowness.spread,
    }
    if blips:
        facts["past_blips"] = [_listed(each, visits) for each in blips[:_MOST_LISTED]]
    costs = _Costs(case, visits, slowness)
    confounded = _confounded(case, visits, difficulty) or _whole_replica(visits, named)
    if confounded:
        return [_suspects(named, visits, costs, {**facts, "why": confounded})], slowness
    return [_slow_rank(each, visits, costs, facts) for each in named], slowness


def find_suspected_ranks(case: Case, slowness: Slowness) -> list[Candidate]:
    """Return a candidate for each rank slower than its peers, as healthy accelerators of this job may be."""
    suspects = find_suspects(slowness)
    visits = slowness.compared.visits
    costs = _Costs(case, visits, suspects)
    facts = {"healthy_spread_ratio": suspects.spread, "why": _WITHIN_THE_SPREAD}
    return [
        replace(_slow_rank(each, visits, costs, facts), certain=False)
        for each in sorted(suspects.found, key=lambda each: -each.size)[:_MOST_SUSPECTED]
    ]


def _slow_rank(each: Excess, visits: Visits, costs: _Costs, facts: Mapping[str, object]) -> Candidate:
    return Candidate(
        cause=Cause.SLOW_RANK,
        phase=SlowPhase.COMPUTE,
        ideal=costs.ideal([each]),
        active=costs.active(each),
        first_step=int(visits.steps[each.first]),
        ranks=(int(visits.ranks[each.column]),),
        lasts=each.steps,
        noise_to_size=costs.slowness.noise / each.size,
        healthy_spread=costs.slowness.spread,
        evidence={"slow_ranks": [_listed(each, visits)], **facts},
    )


def _suspects(
    named: Sequence[Excess], visits: Visits, costs: _Costs, facts: Mapping[str, object]
) -> Candidate:
    """Name as suspects ranks that are slow, or look so."""
    return Candidate(
        cause=Cause.INCONCLUSIVE,
        ideal=costs.ideal(named),
        first_step=int(visits.steps[min(each.first for each in named)]),
        lasts=max(each.steps for each in named),
        evidence={"suspected_ranks": [_listed(each, visits) for each in named[:_MOST_LISTED]], **facts},
    )


def _without_blips(
    found: Sequence[Excess], steps: int, least_steps: int
) -> tuple[list[Excess], list[Excess]]:
    """Return the ranks to name, and those that were a little slow for a while long ago beside a slower one.

    On a long real run healthy ranks have such episodes, too, for which nobody looks after a rank. What still
    goes on when the table ends may be the beginning of something, and is named however little it cost.
    """
    cost = [each.size * each.steps / steps for each in found]
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
        "slow_steps": each.steps,
    }


def _confounded(case: Case, visits: Visits, difficulty: Difficulty) -> str:
    """Say why a slow rank may as well be one with long microbatches; empty where it cannot."""
    known = difficulty.across_ranks or visits.work_log is not None
    if known or not difficulty.is_unequal(case.limits):
        return ""
    return "microbatches are unequal, no two ranks share one, and no work units tell them apart"


def _whole_replica(visits: Visits, named: list[Excess]) -> str:
    """Say why a slow replica may as well be one with long microbatches; empty unless all of it is slow."""
    if visits.work_known:
        return ""
    slow = Counter(int(visits.replica[each.column]) for each in named)
    sizes = Counter(visits.replica.tolist())
    if len(sizes) > 1 and any(sizes[replica] == count > 1 for replica, count in slow.items()):
        return _WHOLE_REPLICA
    return ""


class _ByPlace:
    """Rows by operation and microbatch."""

    def __init__(self, case: Case, rows: Ints) -> None:
        self._microbatches = int(case.table.microbatch.max(initial=0)) + 1
        keys = case.table.operation[rows].astype(np.int64) * self._microbatches + case.table.microbatch[rows]
        order = np.argsort(keys, kind="stable")
        self._rows, self._keys = rows[order], keys[order]

    def of(self, operation: int, microbatch: int | None) -> Ints:
        """Return the rows of an operation, in one microbatch or in all."""
        first = operation * self._microbatches + (microbatch or 0)
        count = self._microbatches if microbatch is None else 1
        begin, end = np.searchsorted(self._keys, [first, first + count])
        rows: Ints = self._rows[begin:end]
        return rows


class _Costs:
    """What slow ranks would take if they were not slow, operation by operation."""

    def __init__(self, case: Case, visits: Visits, slowness: Slowness) -> None:
        self._case, self._visits, self.slowness = case, visits, slowness
        compute = np.flatnonzero((case.table.kind == Kind.COMPUTE) & (case.seconds > 0.0))
        self._rows = compute[np.argsort(case.rank[compute], kind="stable")]
        self._ends = np.searchsorted(case.rank[self._rows], np.arange(len(case.ranks) + 1))
        self._of_peers: dict[int, _ByPlace] = {}
        """Rows of the healthy ranks of a stage."""

    def active(self, each: Excess) -> Bools:
        """Say by step of the case whether the rank was slow."""
        active = np.zeros(len(self._case.steps), dtype=np.bool_)
        active[np.searchsorted(self._case.steps, self._visits.steps[each.active])] = True
        return active

    def ideal(self, named: Sequence[Excess]) -> Ideal:
        """Return the compute of these ranks as it should be."""
        return Ideal(*map(np.concatenate, zip(*map(self._of_rank, named), strict=True)))

    def _of_rank(self, each: Excess) -> Ideal:
        case, visits = self._case, self._visits
        rows = self._of(int(visits.ranks[each.column]))
        by_step = np.zeros(len(case.steps))
        by_step[np.searchsorted(case.steps, visits.steps)] = self.slowness.excess[:, each.column]
        excess = by_step[case.step[rows]]
        rows, excess = rows[excess > 0.0], excess[excess > 0.0]
        past = each.column in self.slowness.against_past
        others = (
            _ByPlace(self._case, self._of(int(self._visits.ranks[each.column])))
            if past
            else self._peers(each)
        )
        # A place is a microbatch of an operation where it runs often enough, else the operation.
        table = self._case.table
        place = Groups.by(table.operation[rows], table.microbatch[rows])
        often = place.size()[place.number] >= _LEAST_OF_PLACE
        part = Groups.by(table.operation[rows], np.where(often, place.number, place.count))
        for here in part.parts():
            excess[here] *= self._times(others, rows[here], excess[here], past=past)
        return Ideal(rows, case.seconds[rows] * np.exp(-excess))

    def _of(self, rank: int) -> Ints:
        index = int(np.searchsorted(self._case.ranks, rank))
        rows: Ints = self._rows[self._ends[index] : self._ends[index + 1]]
        return rows

    def _times(self, compared: _ByPlace, rows: Ints, excess: Floats, *, past: bool) -> float:
        """Divide the excess of one operation by that of all of the rank's; 1 where they may differ by chance.

        past: compared in the other steps than these, else in the same ones.
        """
        case = self._case
        microbatch = case.table.microbatch[rows]
        only = int(microbatch[0]) if (microbatch == microbatch[0]).all() else None
        others = compared.of(int(case.table.operation[rows[0]]), only)
        slow = np.bincount(case.step[rows], minlength=len(case.steps)) > 0
        others = others[slow[case.step[others]] != past]
        mine, theirs = np.log(case.seconds[rows]), np.log(case.seconds[others])
        typical = float(np.median(excess))
        if len(mine) < case.limits.steps or len(theirs) < case.limits.steps:
            return 1.0
        own = float(np.median(mine) - np.median(theirs))
        error = 1.25 * math.hypot(sigma(mine) / math.sqrt(len(mine)), sigma(theirs) / math.sqrt(len(theirs)))
        if abs(own - typical) <= _STANDARD_ERRORS * error:
            return 1.0
        return min(max(own / typical, 0.0), _MOST_TIMES)

    def _peers(self, each: Excess) -> _ByPlace:
        """Return the rows of the healthy ranks of its stage."""
        stages = self._visits.stage
        stage = int(stages[each.column])
        if stage not in self._of_peers:
            healthy = ~(self.slowness.excess > 0.0).any(axis=0)
            peers = np.flatnonzero((stages == stage) & healthy)
            found = [self._of(int(self._visits.ranks[peer])) for peer in peers[:_MOST_LISTED].tolist()]
            rows = np.concatenate([*found, np.empty(0, dtype=np.int64)])
            self._of_peers[stage] = _ByPlace(self._case, rows)
        return self._of_peers[stage]


def find_slow_replicas(case: Case, visits: Visits, difficulty: Difficulty) -> Candidate | None:
    """Find replicas whose fastest rank lies above the others' for long; None where work units are known.

    Their microbatches may as well be long, so no rank is named.
    """
    replica, replicas = factorize(visits.replica)
    if not difficulty.across_ranks or visits.work_known or len(replicas) < case.limits.peers:
        return None
    fastest = _fastest(visits, replica, len(replicas))
    one_stage = np.zeros(len(replicas), dtype=np.int64)
    residuals = against_peers(fastest, one_stage, case.limits.peers)
    noise, chance = noise_of(residuals.values), case.limits.healthy_false_alarm / len(replicas)
    allowed = bounds(fastest, one_stage, noise, case.limits.healthy_spread, chance)
    least = math.log(case.limits.rank_ratio)
    found = scan(residuals._replace(allowed=allowed), case.limits, least_excess=least).found
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
    """Return by (step, replica) the lowest mean logarithm of its ranks; NaN for a replica of one rank."""
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
