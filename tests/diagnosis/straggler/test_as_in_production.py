"""The engine on simulated tables as production jobs have them: batches, hidden waits, inexact clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.simulation.job import Job, Level, at_level, simulate
from bench.simulation.program import Barrier, JobShape, Megatron
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.straggler.engine import diagnose

SHAPE = JobShape(data_parallel=4, pipeline_parallel=4, tensor_parallel=2, microbatches=8)
JOB = at_level(Job(shape=SHAPE, steps=12, seed=5), Level.REAL)
RANK = Fault(cause=Cause.SLOW_RANK, ranks=(10,), factor=1.5)
STAGE = Fault(cause=Cause.SLOW_STAGE, stage=2, factor=1.5)


@pytest.mark.parametrize("chip_sigma", [0.004, 0.01, 0.02, 0.03])
def test_nobody_is_named(chip_sigma: float) -> None:
    """Healthy chips that differ are no fault, nor is a stage that waits where nothing is recorded."""
    table = simulate(replace(JOB, noise=replace(JOB.noise, rank_sigma=chip_sigma))).table
    verdict = diagnose(table)
    certain = [each for each in verdict.causes if each.certain]
    assert not [each for each in (verdict, *certain) if each.ranks or each.stages]


def test_suspect() -> None:
    """A rank that is slower than chips of one kind, but no more than those of this job, is suspected only."""
    job = at_level(Job(shape=JobShape(data_parallel=16, microbatches=8), steps=12, seed=7), Level.REAL)
    spread = replace(job.noise, rank_sigma=0.03)
    verdict = diagnose(simulate(replace(job, noise=spread, fault=replace(RANK, factor=1.12))).table)
    assert verdict.cause in (Cause.NONE, Cause.INCONCLUSIVE)
    suspected = [each for each in verdict.causes if not each.certain and each.cause is Cause.SLOW_RANK]
    assert (10,) in [each.ranks for each in suspected]
    assert all((each.slowdown or 0.0) >= 1.01 for each in suspected)


@pytest.mark.parametrize("barriers", [(), (Barrier.LAST_STAGE, Barrier.REPLICA), (Barrier.JOB,)])
def test_slow_rank(barriers: tuple[Barrier, ...]) -> None:
    """It is named at its cost, whatever the ranks wait at without a row."""
    job = replace(JOB, fault=RANK, megatron=Megatron(barriers=barriers))
    done = simulate(job)
    verdict = diagnose(done.table)
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (10,))
    assert verdict.slowdown - 1.0 == pytest.approx(done.truth.slowdown - 1.0, rel=0.1)


def test_slow_stage() -> None:
    """It is named at its cost, and no rank is."""
    done = simulate(replace(JOB, fault=STAGE))
    verdict = diagnose(done.table)
    assert (verdict.cause, verdict.stages, verdict.ranks) == (Cause.SLOW_STAGE, (2,), ())
    assert verdict.slowdown - 1.0 == pytest.approx(done.truth.slowdown - 1.0, rel=0.1)


def test_rank_and_stage() -> None:
    """Both are listed, and nobody else."""
    verdict = diagnose(simulate(replace(JOB, fault=RANK, more_faults=(STAGE,))).table)
    assert {rank for each in verdict.causes for rank in each.ranks} == {10}
    assert {stage for each in verdict.causes for stage in each.stages} == {2}
