"""One job of the mixture, diagnosed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions import SlowPhase
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.verdict import Verdict

from .baselines import baseline_names
from .mixture import labelled, run, slow_compute

ENGINE = "rankwatch_diagnosis.straggler.engine"

PREFIX_STEPS = (2, 3, 4, 6, 8, 12, 16)
"""Steps since the fault began, at which a worker is looked for to learn the delay."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was said of a job, and what is true. Everything is ready for JSON."""

    number: int
    label: str
    ranks: int
    """World size."""
    rows: int
    sigma: float
    factor: float
    truth: Mapping[str, Any]
    verdict: Mapping[str, Any] | None
    """Without the evidence; None where there is no engine."""
    delay_steps: Mapping[int, int | None]
    """Of each slow rank: the shortest prefix, in steps since the fault began, in which it was named."""
    seconds: float
    """What the diagnosis of the whole table took."""
    baselines: Mapping[str, Sequence[int]]


def attempt(number: int, seed_base: int) -> Trial:
    """Simulate job `number`, diagnose it, and ask the baselines."""
    each = labelled(number, seed_base)
    job, done = run(each.job)
    truth = done.truth
    diagnose = engine()
    verdict, seconds = None, 0.0
    delays: dict[int, int | None] = {}
    if diagnose is not None:
        began = time.perf_counter()
        verdict = diagnose(done.table)
        seconds = time.perf_counter() - began
        if slow_compute(truth):
            delays = _delays(diagnose, done.table, truth.ranks, truth.first_step or 0, verdict)
    return Trial(
        number=number,
        label=each.label,
        ranks=job.shape.ranks,
        rows=len(done.table),
        sigma=job.noise.sigma,
        factor=job.fault.factor,
        truth=truth.as_json(),
        verdict=None if verdict is None else _as_json(verdict),
        delay_steps=delays,
        seconds=seconds,
        baselines=baseline_names(done.table),
    )


def engine() -> Callable[[OperationTable], Verdict] | None:
    """`diagnose`, or None where this tree holds no engine."""
    if find_spec(ENGINE) is None:
        return None
    diagnose: Callable[[OperationTable], Verdict] = import_module(ENGINE).diagnose
    return diagnose


def prefix(table: OperationTable, steps: int) -> OperationTable:
    """The rows of the first steps, counted from 0."""
    return rows_of(table, table.step < steps)


def rows_of(table: OperationTable, rows: NDArray[np.bool_]) -> OperationTable:
    """Some rows, in every column."""
    columns = {
        field.name: getattr(table, field.name)[rows]
        for field in fields(table)
        if isinstance(getattr(table, field.name), np.ndarray)
    }
    return replace(table, **columns)


def _delays(
    diagnose: Callable[[OperationTable], Verdict],
    table: OperationTable,
    ranks: Sequence[int],
    first_step: int,
    whole: Verdict,
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
        if delay is None and verdict.phase is SlowPhase.COMPUTE and rank in verdict.ranks:
            delays[rank] = since


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "cause": str(verdict.cause),
        "phase": verdict.phase and str(verdict.phase),
        "ranks": [int(rank) for rank in verdict.ranks],
        "stages": [int(stage) for stage in verdict.stages],
        "first_step": verdict.first_step,
        "slowdown": float(verdict.slowdown),
        "lost_rank_seconds": float(verdict.lost_rank_seconds),
    }
