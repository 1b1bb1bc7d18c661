"""The verdict on a job as in production, held against its truth: cause, names, costs; and whom rules of other
tools name, without a cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.simulation.job import (
    Job,
    Truth,
    setting_of,
    simulate,
    slowdown_beyond_peers,
    slowdown_of_delays,
)
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.verdict import Verdict

from .production import production_job

LEAST_COST = 1.01
"""A cause that costs less may be passed over."""
_SHARE_OF_WORST = 0.25
"""The head may be any cause that costs 1 %, or this part of what the costliest does."""
_ABSTAINED = (Cause.NONE, Cause.INCONCLUSIVE)
LEAST_PEERS = 3
"""Replicas of a stage: of two, neither can be called the odd one by comparing them."""
_LEAST_RANK, _CHIP_DEVIATIONS, _LEAST_STAGE = 1.025, 2.5, 1.15
"""Up to these sizes a fault is what healthy chips and usual plans differ by."""
_HELD_UP = (SlowPhase.OTHER, SlowPhase.DATA_LOADING)
"""A pause that has no row may be called either."""


class Innocent(NamedTuple):
    """A rank or stage that was named without a fault."""

    name: str
    chip_ratio: float
    """How much slower the slowest chip of its group is by nature than the middle one; 1.0 of a stage."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on one job, ready for JSON."""

    number: int
    label: str
    ranks: int
    rows: int
    chip_sigma: float
    truth: dict[str, Any]
    cause: str
    named: tuple[int, ...]
    slowdown: float
    acceptable: bool
    abstained: bool
    innocents: tuple[Innocent, ...]
    cost_error: float | None
    """Of the slowdown of the head, as a share of the true excess; None where there is nothing to compare."""
    replicas: int
    faulty_ranks: int
    """Ranks whose fault costs at least 1 %."""
    faulty_ranks_found: int
    """Of these, the ones in the list of causes."""
    all_found: bool
    """All ranks at fault are in the list of causes, whatever they cost."""
    seconds: float
    named_by_rules: Mapping[str, tuple[int, ...]]
    """By each of RULES, on the whole table."""


def judge(number: int, seed_base: int) -> Judged:
    """Simulate job `number` and diagnose it."""
    each = production_job(number, seed_base)
    return judge_job(each.job, number, each.label)


def judge_job(job: Job, number: int, label: str) -> Judged:
    """Simulate the job and diagnose it."""
    done = simulate(job)
    began = time.perf_counter()
    verdict = diagnose(done.table)
    seconds = time.perf_counter() - began
    costly = {
        rank
        for each in done.truth.causes
        if each.cause is Cause.SLOW_RANK and each.slowdown >= LEAST_COST
        for rank in each.ranks
    }
    right = acceptable(job, done.truth, verdict)
    return Judged(
        number=number,
        label=label,
        ranks=len(np.unique(done.table.rank)),
        rows=len(done.table),
        chip_sigma=job.noise.rank_sigma,
        truth=asdict(done.truth),
        cause=str(verdict.cause_and_phase),
        named=tuple(int(rank) for rank in verdict.ranks),
        slowdown=float(verdict.slowdown),
        acceptable=right,
        abstained=verdict.cause in _ABSTAINED,
        innocents=tuple(_innocents(job, done.truth, verdict)),
        cost_error=_cost_error(job, verdict) if right else None,
        replicas=job.shape.data_parallel,
        faulty_ranks=len(costly),
        faulty_ranks_found=len(costly & listed_ranks(verdict)),
        all_found={rank for each in done.truth.causes for rank in each.ranks} <= listed_ranks(verdict),
        seconds=seconds,
        named_by_rules=named_by_rules(done.table),
    )


def acceptable(job: Job, truth: Truth, verdict: Verdict) -> bool:
    """The head names a cause that matters and nobody beside it, or abstains where little can be said."""
    if verdict.cause in _ABSTAINED:
        return _may_abstain(job, truth, verdict.cause)
    excess = _true_excess(job, verdict)
    worst = truth.slowdown - 1.0
    least = min(LEAST_COST - 1.0, _SHARE_OF_WORST * worst)
    return excess is not None and excess >= least and not list(_innocents(job, truth, verdict))


def _may_abstain(job: Job, truth: Truth, cause: Cause) -> bool:
    if truth.slowdown_if_all_fixed < LEAST_COST or all(_is_small(job, each) for each in job.faults):
        return True
    lacks = not (job.recorder.sends and job.recorder.receives and job.recorder.groups)
    few = job.shape.data_parallel < LEAST_PEERS and all(each.ranks for each in job.faults)
    return cause is Cause.INCONCLUSIVE and (lacks or few)


def _is_small(job: Job, fault: Fault) -> bool:
    if fault.cause is Cause.SLOW_STAGE:
        return fault.factor < _LEAST_STAGE
    small = max(_LEAST_RANK, 1.0 + _CHIP_DEVIATIONS * job.noise.rank_sigma)
    return (fault.cause, fault.phase) == (Cause.SLOW_RANK, SlowPhase.COMPUTE) and fault.factor < small


def _meant(job: Job, verdict: Verdict) -> list[Fault]:
    """The faults that the head of the verdict names."""
    return [each for each in job.faults if _is_meant(job, each, verdict)]


def _is_meant(job: Job, fault: Fault, verdict: Verdict) -> bool:
    if fault.cause is not verdict.cause:
        return False
    if fault.cause is Cause.SLOW_RANK:
        phases = _HELD_UP if fault.phase in _HELD_UP else (fault.phase,)
        ranks = job.recorder.recorded(job.shape, fault.ranks)
        return verdict.phase in phases and not set(ranks).isdisjoint(verdict.ranks)
    return fault.cause is not Cause.SLOW_STAGE or fault.stage in verdict.stages


def _true_excess(job: Job, verdict: Verdict) -> float | None:
    """What the head of the verdict really costs; None if there is no such thing."""
    if verdict.cause is Cause.JITTER:
        return slowdown_of_delays(job) - 1.0
    meant = _meant(job, verdict)
    return slowdown_beyond_peers(job, meant) - 1.0 if meant else None


def _cost_error(job: Job, verdict: Verdict) -> float | None:
    excess = _true_excess(job, verdict)
    if excess is None or excess < LEAST_COST - 1.0:
        return None
    return abs(verdict.slowdown - 1.0 - excess) / excess


def listed_ranks(verdict: Verdict) -> set[int]:
    """Ranks of the head and of all causes."""
    return {int(rank) for each in (verdict, *verdict.causes) for rank in each.ranks}


def _innocents(job: Job, truth: Truth, verdict: Verdict) -> Iterator[Innocent]:
    """Named by the head or by a cause that is certain."""
    entries = (verdict, *(each for each in verdict.causes if each.certain))
    guilty = {rank for each in truth.causes for rank in each.ranks}
    named = {int(rank) for each in entries for rank in each.ranks} - guilty
    heavy = {stage for each in truth.causes for stage in each.stages}
    if named:
        chips = np.median(setting_of(job).draws.ranks, axis=0)
        for rank in sorted(named):
            yield Innocent(f"rank {rank}", float(chips[job.shape.place(rank)[:2]].max() / np.median(chips)))
    for stage in sorted({int(stage) for each in entries for stage in each.stages} - heavy):
        yield Innocent(f"stage {stage}", 1.0)


def share(judged: Sequence[Judged], what: str) -> float:
    """Share of the jobs for which this field is true; 1 if there are none."""
    return sum(bool(getattr(each, what)) for each in judged) / len(judged) if judged else 1.0


class _Seconds(NamedTuple):
    """Mean seconds in a step, by rank."""

    whole: NDArray[np.float64]
    compute: NDArray[np.float64]
    waiting: NDArray[np.float64]


def named_by_rules(table: OperationTable) -> Mapping[str, tuple[int, ...]]:
    """The ranks that each rule names."""
    ranks, place = np.unique(table.rank, return_inverse=True)

    def of_each(*kinds: Kind) -> NDArray[np.float64]:
        rows = np.isin(table.kind, kinds) if kinds else slice(None)
        total = np.bincount(place[rows], table.duration_seconds[rows], len(ranks))
        mean: NDArray[np.float64] = total / len(np.unique(table.step))
        return mean

    seconds = _Seconds(of_each(), of_each(Kind.COMPUTE), of_each(Kind.COMMUNICATION))
    return {name: tuple(int(rank) for rank in ranks[rule(seconds)]) for name, rule in RULES.items()}


_SCORE = 0.75
"""Threshold of NVIDIA's resiliency extension, in its code."""
_DEVIATIONS, _MAD_TO_SIGMA = 3.0, 1.4826
"""The second: standard deviation of a normal distribution from its median absolute deviation."""


def _median_and_deviations(seconds: _Seconds) -> NDArray[np.intp]:
    middle = np.median(seconds.compute)
    deviation = _MAD_TO_SIGMA * np.median(np.abs(seconds.compute - middle))
    return np.flatnonzero(seconds.compute > middle + _DEVIATIONS * deviation)


RULES: Mapping[str, Callable[[_Seconds], NDArray[np.intp]]] = MappingProxyType(
    {
        "slowest step": lambda seconds: np.array([np.argmax(seconds.whole)]),
        "ratio to the fastest below 0.75": lambda seconds: np.flatnonzero(
            seconds.compute.min() / seconds.compute < _SCORE
        ),
        "median + 3 MAD": _median_and_deviations,
        "shortest wait of the job": lambda seconds: np.array([np.argmin(seconds.waiting)]),
    }
)
"""Rules of other tools."""
