"""Waits that have no row: barriers in pauses, waits inside compute, and stalls that are nobody's wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.unrecorded import HIDDEN_WAIT, STALL
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from support.diagnosis.operations import as_table

STEPS, STAGES, REPLICAS = 12, 3, 4
RANKS = [(stage, replica) for stage in range(STAGES) for replica in range(REPLICAS)]
SLOW = RANKS.index((1, 2))


def job(held: Held, *, inside: bool = False, steps: int = STEPS) -> OperationTable:
    """Each rank computes, is held without a row (or inside of one), and reduces in its stage. One is slow."""
    random = np.random.default_rng(3)
    rows: list[tuple[Any, ...]] = []
    for step in range(steps):
        came = 100.0 * step + random.uniform(1.0, 2.0, len(RANKS))
        came[SLOW] += 4.0
        on = held(came)
        left = {s: 0.5 + max(on[i] for i, (each, _) in enumerate(RANKS) if each == s) for s in range(STAGES)}
        for rank, (stage, replica) in enumerate(RANKS):
            place = (stage, replica, 0)
            begin = 100.0 * step
            rows.append((step, rank, "compute", Kind.COMPUTE, begin, came[rank] - begin, *place, "", np.nan))
            if inside:
                wait = (came[rank], on[rank] - came[rank])
                rows.append((step, rank, "clip", Kind.COMPUTE, *wait, *place, "", np.nan))
            reduces = (on[rank], left[stage] - on[rank])
            rows.append((step, rank, "reduce", Kind.COMMUNICATION, *reduces, *place, f"dp-{stage}", np.nan))
    return as_table(rows)


Floats = np.ndarray[Any, Any]
Held = Callable[[Floats], Floats]
"""The moments at which ranks go on, from those at which they come."""


def of_all(came: Floats) -> Floats:
    return np.full_like(came, came.max()) + 0.01


def of_replicas(came: Floats) -> Floats:
    last = came.reshape(STAGES, REPLICAS).max(axis=0)
    return np.tile(last, STAGES) + 0.01


def of_last_stage_and_replicas(came: Floats) -> Floats:
    """The ranks of the last stage wait for each other, and then each replica for its ranks."""
    came = came.copy()
    came[-REPLICAS:] = came[-REPLICAS:].max()
    return of_replicas(came)


def of_nobody(came: Floats) -> Floats:
    """Each takes its own time, with some noise, however late it comes."""
    return came + np.random.default_rng(int(came[0] * 1e6)).uniform(0.2, 0.3, len(came))


def without_the_fault(case: Case) -> float:
    """Seconds of all steps over those without the slow rank's 4 s."""
    slow = (case.table.rank == SLOW) & (case.seconds > 4.0)
    fair = np.where(slow, case.seconds - 4.0, case.seconds)
    return float(case.replay.step_seconds(fair).sum())


def truth(held: Held, steps: int) -> float:
    random = np.random.default_rng(3)
    total = 0.0
    for step in range(steps):
        came = 100.0 * step + random.uniform(1.0, 2.0, len(RANKS))
        total += float(held(came).max()) + 0.5 - 100.0 * step
    return total


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("held", "steps"),
    [(of_all, 1), (of_all, STEPS), (of_replicas, STEPS), (of_last_stage_and_replicas, STEPS)],
)
def test_meeting(held: Held, inside: bool, steps: int) -> None:
    """Who waits for whom is found, so that a slow rank's cost includes the waits of others for it."""
    case = Case(job(held, inside=inside, steps=steps), DEFAULT)
    assert HIDDEN_WAIT in case.table.operations
    assert without_the_fault(case) == pytest.approx(truth(held, steps), rel=0.02)


def test_compute_that_hides_no_wait() -> None:
    """An optimizer of any length stays compute, and what it takes stays the rank's."""
    case = Case(job(of_nobody, inside=True), DEFAULT)
    assert HIDDEN_WAIT not in case.table.operations


def test_stall() -> None:
    """A long pause of one rank becomes a row of other work, of that rank alone."""
    table = job(of_nobody)
    table = replace(table, stage=np.zeros_like(table.stage))
    late = (table.rank == 5) & (table.operation == table.operations.index("reduce"))
    table.start_seconds[late] += 0.75
    table.duration_seconds[late] -= 0.75
    case = Case(table.take(table.duration_seconds > 0.0), DEFAULT)
    stalls = case.table.operation == case.table.operations.index(STALL)
    seconds = np.bincount(case.table.rank[stalls], weights=case.seconds[stalls], minlength=len(RANKS))
    assert int(np.argmax(seconds)) == 5
    assert seconds[5] > 5.0 * np.delete(seconds, 5).max()
    assert (case.table.kind[stalls] == Kind.OTHER).all()
