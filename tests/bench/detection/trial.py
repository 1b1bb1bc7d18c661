"""One job of the mixture, diagnosed by the engine and by the baselines: rules of other tools.

Baselines are applied to the whole table. They name ranks without causes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions.states import SlowPhase
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.verdict import Verdict

from .mixture import labelled, run, slow_compute

PREFIX_STEPS = (2, 3, 4, 6, 8, 12, 16)
"""Steps after the begin of the fault at which a diagnosis is made, to measure the delay."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The verdict on a job and the truth, ready for JSON."""

    number: int
    label: str
    ranks: int
    """World size."""
    rows: int
    sigma: float
    factor: float
    truth: Mapping[str, Any]
    verdict: Mapping[str, Any]
    """Without the evidence."""
    delay_steps: Mapping[int, int | None]
    """By slow rank: steps after the begin of the fault until it was named; None if it never was."""
    seconds: float
    """Duration of the diagnosis of the whole table."""
    baselines: Mapping[str, Sequence[int]]


def attempt(number: int, seed_base: int) -> Trial:
    """Simulate job `number`, and diagnose it with the engine and the baselines."""
    each = labelled(number, seed_base)
    job, done = run(each.job)
    truth = done.truth
    began = time.perf_counter()
    verdict = diagnose(done.table)
    seconds = time.perf_counter() - began
    delays: dict[int, int | None] = {}
    if slow_compute(truth):
        delays = _delays(done.table, truth.ranks, truth.first_step or 0, verdict)
    return Trial(
        number=number,
        label=each.label,
        ranks=job.shape.ranks,
        rows=len(done.table),
        sigma=job.noise.sigma,
        factor=job.fault.factor,
        truth=asdict(truth),
        verdict=_as_json(verdict),
        delay_steps=delays,
        seconds=seconds,
        baselines=baseline_names(done.table),
    )


def prefix(table: OperationTable, steps: int) -> OperationTable:
    """The rows of the first steps, counted from 0."""
    return table.take(table.step < steps)


def _delays(
    table: OperationTable, ranks: Sequence[int], first_step: int, whole: Verdict
) -> dict[int, int | None]:
    steps = int(table.step.max()) + 1
    delays: dict[int, int | None] = dict.fromkeys(ranks)
    for since in PREFIX_STEPS:
        if first_step + since >= steps:
            break
        _note(delays, diagnose(prefix(table, first_step + since)), since)
        if None not in delays.values():
            return delays
    _note(delays, whole, steps - first_step)
    return delays


def _note(delays: dict[int, int | None], verdict: Verdict, since: int) -> None:
    for rank, delay in delays.items():
        if delay is None and rank in _slow_ranks(verdict):
            delays[rank] = since


def _slow_ranks(verdict: Verdict) -> list[int]:
    """Ranks that compute slowly, by all causes that are certain."""
    found = (each for each in verdict.causes if each.certain and each.phase is SlowPhase.COMPUTE)
    return sorted({int(rank) for each in found for rank in each.ranks})


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "cause": str(verdict.cause),
        "phase": verdict.phase and str(verdict.phase),
        "ranks": [int(rank) for rank in verdict.ranks],
        "slow_ranks": _slow_ranks(verdict),
        "stages": [int(stage) for stage in verdict.stages],
        "first_step": verdict.first_step,
        "slowdown": float(verdict.slowdown),
        "lost_rank_seconds": float(verdict.lost_rank_seconds),
    }


Floats = NDArray[np.float64]

SCORE = 0.75
"""Threshold of NVIDIA's resiliency extension, in its code."""
DEVIATIONS = 3.0
MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution from its median absolute deviation."""


def baseline_names(table: OperationTable) -> Mapping[str, tuple[int, ...]]:
    """The ranks that each rule names."""
    ranks, place = np.unique(table.rank, return_inverse=True)
    steps = len(np.unique(table.step))

    def of_each(*kinds: Kind) -> Floats:
        rows = np.isin(table.kind, kinds) if kinds else slice(None)
        total = np.bincount(place[rows], table.duration_seconds[rows], len(ranks))
        mean: Floats = total / steps
        return mean

    seconds = _Seconds(whole=of_each(), compute=of_each(Kind.COMPUTE), waiting=of_each(Kind.COMMUNICATION))
    return {name: tuple(int(rank) for rank in ranks[rule(seconds)]) for name, rule in RULES.items()}


class _Seconds:
    """Mean seconds in a step, by rank."""

    def __init__(self, *, whole: Floats, compute: Floats, waiting: Floats) -> None:
        self.whole, self.compute, self.waiting = whole, compute, waiting


def _slowest_step(seconds: _Seconds) -> NDArray[np.intp]:
    return np.array([np.argmax(seconds.whole)])


def _ratio_to_fastest(seconds: _Seconds) -> NDArray[np.intp]:
    return np.flatnonzero(seconds.compute.min() / seconds.compute < SCORE)


def _median_and_deviations(seconds: _Seconds) -> NDArray[np.intp]:
    middle = np.median(seconds.compute)
    deviation = MAD_TO_SIGMA * np.median(np.abs(seconds.compute - middle))
    return np.flatnonzero(seconds.compute > middle + DEVIATIONS * deviation)


def _shortest_wait(seconds: _Seconds) -> NDArray[np.intp]:
    return np.array([np.argmin(seconds.waiting)])


RULES: Mapping[str, Callable[[_Seconds], NDArray[np.intp]]] = MappingProxyType(
    {
        "slowest step": _slowest_step,
        "ratio to the fastest below 0.75": _ratio_to_fastest,
        "median + 3 MAD": _median_and_deviations,
        "shortest wait of the job": _shortest_wait,
    }
)


_Result = TypeVar("_Result")


def in_processes(
    function: Callable[..., _Result], arguments: Sequence[tuple[object, ...]], processes: int
) -> list[_Result]:
    """The results, in order; the same whatever the number of processes."""
    if processes == 1:
        return [function(*each) for each in arguments]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(function, *zip(*arguments, strict=True)))
