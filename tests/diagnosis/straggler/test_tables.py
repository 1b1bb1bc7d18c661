"""Verdicts on tables of other recorders: other columns and clocks, some ranks only, and as in production."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bench.simulation.job import Job, Level, at_level, simulate
from bench.simulation.program import Barrier, JobShape, Megatron
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.engine import diagnose
from support.diagnosis.operations import (
    SmallJob,
    last_end,
    on_wall_clocks,
    transfers_only,
    with_gaps,
    without,
)


def test_first_step_compiles() -> None:
    """Ranks compile for unequal times: no jitter, nobody's fault, and it hides no slow rank."""
    for factor, cause, ranks in ((1.0, Cause.NONE, ()), (1.2, Cause.SLOW_RANK, (5,))):
        job = SmallJob(dp=8)
        job.compute[0] *= job.random.uniform(3.0, 5.0, (job.dp, job.pp, 1))
        verdict = diagnose(job.slow_rank(5, factor).table())
        assert (verdict.cause, verdict.ranks) == (cause, ranks)
        assert verdict.first_step in (None, 0)


def test_one_late_step_everywhere() -> None:
    """It is an event. Jitter goes on."""
    job = SmallJob(dp=16)
    job.compute[9] *= job.random.uniform(1.0, 1.6, (16, 1, 1))
    assert diagnose(job.table()).cause is Cause.NONE


def test_late_steps_in_a_row_among_jitter() -> None:
    """With so many late steps, four of one rank follow each other now and then."""
    job = SmallJob(dp=8, microbatches=1)
    late = job.random.random((job.steps, 8, 1, 1)) < 0.1
    late[10:14] = False
    late[10:14, 3] = True
    job.compute *= np.where(late, 1.5, 1.0)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.JITTER, ())
    assert [each.cause for each in verdict.causes] == [Cause.JITTER, Cause.SLOW_RANK]


@pytest.mark.parametrize("pp", [2, 4])
def test_inferred_stages(pp: int) -> None:
    """Stages follow from sends and receives: an end stage with a head of its own is not a slow rank."""
    job = SmallJob(dp=4, pp=pp)
    job.compute[:, :, pp - 1] *= 1.08
    assert diagnose(without(job.table(), "stage")).cause is Cause.NONE
    slow = SmallJob(dp=4, pp=pp).slow_rank(5, 1.3).table()
    verdict = diagnose(without(slow, "stage"))
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (5,))
    assert verdict.slowdown == pytest.approx(_truth(slow, SmallJob(dp=4, pp=pp)), rel=0.03)


def test_inferred_slow_stage() -> None:
    """Inner stages run the same program, and differ by the pattern of their ranks."""
    job = SmallJob(dp=4, pp=4)
    job.compute[:, :, 2] *= 1.4
    verdict = diagnose(without(job.table(), "stage", "group"))
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.SLOW_STAGE, (), (2,))


@pytest.mark.parametrize(
    ("pp", "rank", "recorded"),
    [
        (1, 2, transfers_only),
        (4, 2, transfers_only),
        (4, 6, lambda table: on_wall_clocks(transfers_only(table))),
    ],
    ids=["replicas", "pipeline", "wall clocks"],
)
def test_waits_as_pauses(pp: int, rank: int, recorded: Callable[[OperationTable], OperationTable]) -> None:
    """Waits outside of collectives, also by clocks rounded to microseconds since 1970, give the same cost."""
    slow = SmallJob(dp=4, pp=pp).slow_rank(rank, 1.5).table()
    verdict = diagnose(recorded(slow))
    assert verdict.ranks == (rank,)
    assert verdict.slowdown == pytest.approx(_truth(slow, SmallJob(dp=4, pp=pp)), rel=0.03)


def test_gaps() -> None:
    """A wait for a rank that is left out of a step is no transfer."""
    job = SmallJob(dp=8, pp=2, steps=40)
    job.compute[:, :, 1] *= 1.4
    heavy = job.table()
    verdict = diagnose(with_gaps(heavy, 0.06))
    assert (verdict.cause, verdict.stages) == (Cause.SLOW_STAGE, (1,))
    assert verdict.slowdown == pytest.approx(_truth(heavy, SmallJob(dp=8, pp=2, steps=40)), rel=0.03)


def test_replica_that_becomes_slow() -> None:
    """Its ranks share microbatches, so none is named. Where work is known to be equal, all are."""
    job = SmallJob(dp=4, pp=2)
    job.compute[10:, 1] *= 1.3
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.INCONCLUSIVE, ())
    assert "replica" in str(verdict.evidence["why"])
    job.work = np.full((job.steps, 4, 4), 4096.0)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.SLOW_RANK, (2, 3), 10)


def test_short_past() -> None:
    """As many steps as count for anything show that transfers grew."""
    job = SmallJob(dp=8, steps=60)
    job.transfer[5:] *= 6.0
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.first_step) == (Cause.NETWORK, 5)


def test_data_loading_that_grows() -> None:
    """It is compared with its past, so its cost is no upper bound."""
    job, healthy = SmallJob(), SmallJob()
    job.loading[14:] *= 15.0
    table = job.table()
    verdict = diagnose(table)
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.DATA_LOADING, (), 14)
    assert verdict.evidence["slowdown_is_upper_bound"] is False
    assert verdict.slowdown == pytest.approx(_truth(table, healthy), rel=0.03)


def _truth(slow: OperationTable, healthy: SmallJob) -> float:
    """How much longer the job takes than the same random numbers without the fault."""
    return last_end(slow) / last_end(healthy.table())


@pytest.mark.parametrize("seed", range(3))
def test_first_ranks_of_a_job(seed: int) -> None:
    """Their numbers have no gap, but the reduction gets shorter as they come later: they wait for others."""
    job = SmallJob(dp=16, steps=80, noise=0.04, seed=seed).slow_rank(12, 1.1, first=30)
    table = job.table()
    verdict = diagnose(table.take(table.rank < 8))
    assert verdict.cause in (Cause.INCONCLUSIVE, Cause.NONE)


def test_single_stage_of_a_pipeline() -> None:
    """No rank in the table sends what it receives, though its ranks count from 0 without a gap."""
    shape = JobShape(data_parallel=8, pipeline_parallel=2)
    fault = Fault(cause=Cause.SLOW_STAGE, stage=1, factor=1.5, first_step=16)
    table = simulate(Job(shape=shape, fault=fault)).table
    verdict = diagnose(table.take(table.stage == 0))
    assert verdict.cause in (Cause.INCONCLUSIVE, Cause.NONE)


def test_whole_table() -> None:
    """Transfers of a slow network take as long whenever the members come."""
    job = SmallJob(dp=16, steps=40, noise=0.04)
    job.transfer[16:] *= 3.0
    assert diagnose(job.table()).cause is Cause.NETWORK


SHAPE = JobShape(data_parallel=4, pipeline_parallel=4, tensor_parallel=2, microbatches=8)
JOB = at_level(Job(shape=SHAPE, steps=12, seed=5), Level.REAL)
RANK = Fault(cause=Cause.SLOW_RANK, ranks=(10,), factor=1.5)


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
