"""Verdicts on tables of other people: other columns, clocks and recorders, the same job."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.conventions import Cause
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.engine import diagnose
from support.diagnosis.operation_styles import on_wall_clocks, transfers_only, with_gaps, without
from support.diagnosis.operations import SmallJob


def test_a_first_step_that_compiles_hides_no_slow_rank() -> None:
    """Ranks compile for unequal times; that is neither jitter nor anybody's fault."""
    verdict = diagnose(_compiling(SmallJob(dp=8)).table())
    assert (verdict.cause, verdict.ranks) == (Cause.NONE, ())
    verdict = diagnose(_compiling(SmallJob(dp=8)).slow_rank(5, 1.2).table())
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.SLOW_RANK, (5,), 0)


def test_one_step_that_is_late_everywhere_is_an_event() -> None:
    """Jitter goes on."""
    job = SmallJob(dp=16)
    job.compute[9] *= job.random.uniform(1.0, 1.6, (16, 1, 1))
    assert diagnose(job.table()).cause is Cause.NONE


def test_a_few_late_steps_in_a_row_are_a_turn_where_ranks_are_late_in_turn() -> None:
    """With so many late rank-steps, four of one rank follow each other now and then."""
    job = SmallJob(dp=8, microbatches=1)
    late = job.random.random((job.steps, 8, 1, 1)) < 0.1
    late[10:14] = False
    late[10:14, 3] = True
    job.compute *= np.where(late, 1.5, 1.0)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.JITTER, ())
    assert [each["cause"] for each in verdict.evidence["also_seen"]] == ["slow_rank"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("pp", [2, 4])
def test_stages_are_found_where_the_table_does_not_tell_them(pp: int) -> None:
    """By what a rank sends and receives: an end stage with a head of its own is no slow rank."""
    job = SmallJob(dp=4, pp=pp)
    job.compute[:, :, pp - 1] *= 1.08
    assert diagnose(without(job.table(), "stage")).cause is Cause.NONE
    slow = SmallJob(dp=4, pp=pp).slow_rank(5, 1.3).table()
    verdict = diagnose(without(slow, "stage"))
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (5,))
    assert verdict.slowdown == pytest.approx(_truth(slow, SmallJob(dp=4, pp=pp)), rel=0.03)


def test_a_heavy_stage_that_is_not_told_names_none_of_its_ranks() -> None:
    """Inner stages run the same program, and are told apart by the pattern of their ranks."""
    job = SmallJob(dp=4, pp=4)
    job.compute[:, :, 2] *= 1.4
    verdict = diagnose(without(job.table(), "stage", "group"))
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.SLOW_STAGE, (), (2,))


@pytest.mark.parametrize("pp", [1, 4])
def test_a_wait_that_is_told_as_a_pause_is_a_wait_all_the_same(pp: int) -> None:
    """Recorders that begin a collective with its last member give the same cost."""
    slow = SmallJob(dp=4, pp=pp).slow_rank(2, 1.6).table()
    verdict = diagnose(transfers_only(slow))
    assert verdict.ranks == (2,)
    assert verdict.slowdown == pytest.approx(_truth(slow, SmallJob(dp=4, pp=pp)), rel=0.03)


def test_microseconds_since_1970_are_as_good_as_any_clock() -> None:
    """What is rounded away must not make a row begin before the one that it follows."""
    slow = SmallJob(dp=4, pp=4).slow_rank(6, 1.4).table()
    verdict = diagnose(on_wall_clocks(transfers_only(slow)))
    assert verdict.ranks == (6,)
    assert verdict.slowdown == pytest.approx(_truth(slow, SmallJob(dp=4, pp=4)), rel=0.03)


def test_ranks_left_out_of_some_steps_change_no_cost() -> None:
    """A wait for a rank that is not there is no transfer."""
    job = SmallJob(dp=8, pp=2, steps=40)
    job.compute[:, :, 1] *= 1.4
    heavy = job.table()
    verdict = diagnose(with_gaps(heavy, 0.06))
    assert (verdict.cause, verdict.stages) == (Cause.SLOW_STAGE, (1,))
    assert verdict.slowdown == pytest.approx(_truth(heavy, SmallJob(dp=8, pp=2, steps=40)), rel=0.03)


def test_a_replica_that_becomes_slow_is_not_taken_for_unequal_batches() -> None:
    """Its ranks share them, so nobody is named; where work says that they are equal, all are."""
    job = SmallJob(dp=4, pp=2)
    job.compute[10:, 1] *= 1.3
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.INCONCLUSIVE, ())
    assert "replica" in str(verdict.evidence["why"])
    job.work = np.full((job.steps, 4, 4), 4096.0)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.SLOW_RANK, (2, 3), 10)


def test_a_short_past_is_enough_to_see_that_transfers_grew() -> None:
    """As many steps as count for anything."""
    job = SmallJob(dp=8, steps=60)
    job.transfer[5:] *= 6.0
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.first_step) == (Cause.NETWORK, 5)


def test_starvation_that_begins_inside_the_table_is_held_against_its_past() -> None:
    """So its cost is no upper bound."""
    job, healthy = SmallJob(), SmallJob()
    job.loading[14:] *= 15.0
    table = job.table()
    verdict = diagnose(table)
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.DATA_LOADING, (), 14)
    assert verdict.evidence["slowdown_is_upper_bound"] is False
    assert verdict.slowdown == pytest.approx(_truth(table, healthy), rel=0.03)


def _compiling(job: SmallJob) -> SmallJob:
    job.compute[0] *= job.random.uniform(3.0, 5.0, (job.dp, job.pp, 1))
    return job


def _truth(slow: OperationTable, healthy: SmallJob) -> float:
    """How much longer the job takes than the same random numbers without the fault."""
    return _last_end(slow) / _last_end(healthy.table())


def _last_end(table: OperationTable) -> float:
    return float((table.start_seconds + table.duration_seconds).max())
