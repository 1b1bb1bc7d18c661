"""A table that holds only some ranks: a wait for the others is no transfer."""

from __future__ import annotations

import pytest

from rankwatch.conventions import Cause
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.job import Job, simulate
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.straggler.engine import diagnose
from support.diagnosis.operations import SmallJob


@pytest.mark.parametrize("seed", range(3))
def test_the_first_ranks_of_a_job_wait_for_others_and_the_network_is_not_blamed(seed: int) -> None:
    """Their numbers have no gap, but the reduction gets shorter as they come later."""
    job = SmallJob(dp=16, steps=80, noise=0.04, seed=seed).slow_rank(12, 1.1, first=30)
    table = job.table()
    verdict = diagnose(table.take(table.rank < 8))
    assert verdict.cause in (Cause.INCONCLUSIVE, Cause.NONE)


def test_a_stage_without_its_neighbours_does_not_blame_the_network() -> None:
    """Nobody in the table sends what it receives, though its ranks count from 0 without a gap."""
    shape = JobShape(data_parallel=8, pipeline_parallel=2)
    fault = Fault(cause=Cause.SLOW_STAGE, stage=1, factor=1.5, first_step=16)
    table = simulate(Job(shape=shape, fault=fault)).table
    verdict = diagnose(table.take(table.stage == 0))
    assert verdict.cause in (Cause.INCONCLUSIVE, Cause.NONE)


def test_a_network_that_grows_slow_is_still_told_in_a_whole_table() -> None:
    """Its transfers take as long whenever the members come."""
    job = SmallJob(dp=16, steps=40, noise=0.04)
    job.transfer[16:] *= 3.0
    assert diagnose(job.table()).cause is Cause.NETWORK
