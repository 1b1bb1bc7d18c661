"""The engine on tables of real jobs, as recorded and re-timed with faults injected.

`python -m tests.bench.real_jobs --list` judges more than 300 cases; these are one or two of each kind.
"""

from __future__ import annotations

from functools import cache

import pytest

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.straggler.engine import diagnose
from support.retimer.cases import Case, all_cases
from support.retimer.judge import judge
from support.retimer.real_jobs import ABSENT, TABLES, real

recorded = pytest.mark.skipif(not TABLES.is_dir(), reason=ABSENT)

RIGHT_SIMULATED = [
    "wide healthy",
    "wide slow rank 1.05",
    "wide slow rank 1.4, a fifth",
    "wide slow stage 1.3",
    "wide loading 0.3",
    "wide slow link 0.3",
    "wide unequal batches 0.2",
    "wide spread 0.03",
    "wide slow stage 1.3 and slow rank 1.5",
    "wide stall 0.5 before 1 in 2 passes, whole",
    "flat healthy",
    "flat slow rank 1.4, every fifth",
    "flat slow rank 1.08",
    "flat jitter 2.0",
    "flat spread 0.02, slow rank 1.12",
]
"""Names of cases of simulated jobs in which cause, names and cost are right."""
RIGHT = [
    "job-a healthy",
    "job-a healthy, own clocks",
    "job-a slow rank 1.05",
    "job-a slow rank 1.4, second half",
    "job-a slow rank 1.15, every third",
    "job-a stall 0.1 before 1 in 1 passes, whole",
    "job-a slow stage 1.2",
    "job-a two slow ranks (1.2, 1.3), ('whole', 'second half')",
    "job-a spread 0.02, again",
    "job-a spread 0.03, slow stage 1.3",
    "job-a late operations, slow stage 1.4",
    "job-a drift 0.2",
    "job-a slow rank 1.3, 1 steps",
    "job-a slow stage 1.4, 2 steps",
    "job-a as recorded, gaps",
    "job-a as recorded and slow rank 1.6",
    "job-b healthy",
    "job-b healthy, no receives",
    "job-b slow rank 1.3, shuffled",
    "job-b spread 0.03, slow rank 1.3",
    "job-b slow stage 1.8",
    "job-b slow stage 1.4, own clocks",
    "job-b spread 0.03",
    "job-b loading 0.3",
    "job-b slow link 0.3",
    "job-b slow transfers of a replica 0.1",
    "job-b jitter 4.0",
    "job-b as recorded, own clocks",
    "job-b as recorded, no groups",
]
"""The same of recorded jobs."""


@cache
def cases() -> dict[str, Case]:
    return {case.name: case for case in all_cases()}


@pytest.mark.parametrize("name", [*RIGHT_SIMULATED, *(pytest.param(name, marks=recorded) for name in RIGHT)])
def test_right(name: str) -> None:
    """The cause is right, no innocent is named, and the cost is within 5 % of the true excess."""
    outcome = judge(cases()[name])
    assert outcome.acceptable, outcome
    assert (outcome.innocents, outcome.costly_ranks_found) == ((), outcome.costly_ranks)
    assert outcome.error is None or outcome.error <= 0.05, outcome


@recorded
def test_slow_rank_of_a_real_job() -> None:
    """Job a as it was recorded: rank 0 computes 2.4 times as long as its peers, and all ranks wait for it."""
    verdict = diagnose(real("job-a").table)
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.SLOW_RANK, (0,), ())
    assert verdict.slowdown == pytest.approx(2.02, abs=0.05)


@recorded
def test_slow_stage_of_a_real_job() -> None:
    """Job b as it was recorded: the last stage has the loss, and takes 1.6 times as long as the others."""
    verdict = diagnose(real("job-b").table)
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.SLOW_STAGE, (), (3,))
    assert verdict.slowdown == pytest.approx(1.31, abs=0.03)
