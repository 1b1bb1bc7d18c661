"""From a table of operations to a verdict, on jobs made without the engine or the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.engine import diagnose
from support.diagnosis.operations import SmallJob

SHAPES = [(8, 1), (4, 4), (8, 2), (16, 1)]


@pytest.mark.parametrize(("dp", "pp"), SHAPES)
def test_of_a_healthy_job_nobody_is_named(dp: int, pp: int) -> None:
    """Neither a rank nor a cause."""
    verdict = diagnose(SmallJob(dp=dp, pp=pp).table())
    assert (verdict.cause, verdict.ranks, verdict.stages, verdict.first_step) == (Cause.NONE, (), (), None)
    assert (verdict.slowdown, verdict.lost_rank_seconds) == (1.0, 0.0)


@pytest.mark.parametrize(("dp", "pp"), SHAPES)
@pytest.mark.parametrize("factor", [1.05, 1.2, 2.0])
def test_the_rank_that_computes_slowly_is_named(dp: int, pp: int, factor: float) -> None:
    """In every shape of job, down to 5 %, with its size."""
    job = SmallJob(dp=dp, pp=pp).slow_rank(5, factor)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (5,))
    (told,) = verdict.evidence["slow_ranks"]  # type: ignore[misc, attr-defined]
    assert told["slower_by_ratio"] == pytest.approx(factor - 1.0, abs=0.02)


def test_the_first_step_is_where_it_began() -> None:
    """Not where the table begins."""
    verdict = diagnose(SmallJob(dp=4, pp=4).slow_rank(6, 1.2, first=9).table())
    assert (verdict.ranks, verdict.first_step) == ((6,), 9)


def test_an_episode_that_is_over_is_found() -> None:
    """The median of the whole run would not show it."""
    verdict = diagnose(SmallJob().slow_rank(2, 1.3, first=5, end=13).table())
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.SLOW_RANK, (2,), 5)


def test_several_slow_ranks_are_all_named() -> None:
    """Each by its own residual."""
    job = SmallJob(dp=4, pp=4).slow_rank(6, 1.2).slow_rank(9, 1.3)
    assert diagnose(job.table()).ranks == (6, 9)


def test_the_slowdown_is_that_of_the_same_run_without_the_culprit() -> None:
    """Within 3 % of the same random numbers without the fault; lost time counts every rank."""
    slow, healthy = SmallJob(dp=8, noise=0.02).slow_rank(3, 1.5).table(), SmallJob(dp=8, noise=0.02).table()
    truth = _last_end(slow) / _last_end(healthy)
    verdict = diagnose(slow)
    assert verdict.slowdown == pytest.approx(truth, rel=0.03)
    assert verdict.lost_rank_seconds == pytest.approx(8 * (_last_end(slow) - _last_end(healthy)), rel=0.1)


@pytest.mark.parametrize("messages", [True, False])
def test_the_replay_follows_the_pipeline(messages: bool) -> None:
    """With rows of sends and receives, and by the order of stages without."""
    slow = SmallJob(dp=4, pp=4, noise=0.01, with_messages=messages).slow_rank(6, 1.5).table()
    healthy = SmallJob(dp=4, pp=4, noise=0.01, with_messages=messages).table()
    assert diagnose(slow).slowdown == pytest.approx(_last_end(slow) / _last_end(healthy), rel=0.03)


@pytest.mark.parametrize(("dp", "pp"), SHAPES)
def test_unequal_microbatches_are_data_and_no_rank(dp: int, pp: int) -> None:
    """A long batch is long wherever it goes."""
    verdict = diagnose(SmallJob(dp=dp, pp=pp).uneven(0.3).table())
    assert (verdict.cause, verdict.ranks) == (Cause.UNEQUAL_BATCHES, ())


def test_a_slow_rank_is_seen_through_unequal_microbatches() -> None:
    """Its replica's other ranks had the same batches."""
    verdict = diagnose(SmallJob(dp=4, pp=4).uneven(0.3).slow_rank(6, 1.2).table())
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (6,))
    assert [each["cause"] for each in verdict.evidence["also_seen"]] == ["unequal_batches"]  # type: ignore[attr-defined]


def test_work_units_tell_a_slow_rank_from_long_batches() -> None:
    """Without a second stage, only they do."""
    job = SmallJob().uneven(0.3)
    job.work = 1000.0 * job.compute[:, :, 0, :].copy()
    assert diagnose(job.slow_rank(6, 1.2).table()).ranks == (6,)


def test_a_rank_that_always_gets_more_work_is_not_slow() -> None:
    """The work says so."""
    job = SmallJob().slow_rank(3, 1.3)
    job.work = 1000.0 * job.compute[:, :, 0, :].copy()
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.UNEQUAL_BATCHES, ())


def test_it_abstains_where_rank_and_data_are_confounded() -> None:
    """One stage, unequal batches, no work units, and one rank that is always late."""
    verdict = diagnose(SmallJob().uneven(0.3).slow_rank(3, 1.4).table())
    assert (verdict.cause, verdict.ranks) == (Cause.INCONCLUSIVE, ())
    assert "no work units" in str(verdict.evidence["why"])


def test_it_abstains_where_a_whole_replica_is_late() -> None:
    """Its ranks share their batches."""
    job = SmallJob(dp=4, pp=4)
    job.compute[:, 1] *= 1.3
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.INCONCLUSIVE, ())


@pytest.mark.parametrize("pp", [1, 4])
def test_of_two_ranks_neither_is_the_odd_one(pp: int) -> None:
    """Where both have been as they are since the table began."""
    verdict = diagnose(SmallJob(dp=2, pp=pp).slow_rank(1, 1.2).table())
    assert (verdict.cause, verdict.ranks) == (Cause.INCONCLUSIVE, ())


def test_of_two_ranks_the_one_that_became_slower_is_named() -> None:
    """Its own past is the comparison."""
    verdict = diagnose(SmallJob(dp=2, pp=4).slow_rank(1, 1.2, first=12).table())
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.SLOW_RANK, (1,), 12)


def test_with_one_replica_a_heavy_stage_and_a_slow_rank_are_the_same() -> None:
    """So neither is named."""
    verdict = diagnose(SmallJob(dp=1, pp=4).slow_rank(1, 1.3).table())
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.INCONCLUSIVE, (), ())


def test_a_stage_that_is_heavy_in_every_replica_is_the_stage() -> None:
    """No rank of it is to blame."""
    job = SmallJob(dp=4, pp=4)
    job.compute[:, :, 3] *= 1.3
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.SLOW_STAGE, (), (3,))


def test_an_end_stage_a_little_heavier_by_design_is_no_fault() -> None:
    """Embedding and head are there on purpose."""
    job = SmallJob(dp=4, pp=4)
    job.compute[:, :, 3] *= 1.08
    assert diagnose(job.table()).cause is Cause.NONE


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize(("dp", "pp"), [(8, 1), (4, 4)])
def test_ranks_late_in_turn_are_jitter(dp: int, pp: int, microbatches: int) -> None:
    """None is late for long."""
    job = SmallJob(dp=dp, pp=pp, microbatches=microbatches)
    hit = job.random.random((job.steps, dp, pp, 1)) < 0.08
    job.compute *= np.where(hit, 1.5, 1.0)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.JITTER, ())


def test_many_late_steps_name_nobody_by_chance() -> None:
    """With one late rank-step in five, some rank is late four times in a row."""
    for seed in range(4):
        job = SmallJob(dp=32, microbatches=2, seed=seed)
        hit = job.random.random((job.steps, 32, 1, 1)) < 0.2
        job.compute *= np.where(hit, 1.3, 1.0)
        assert diagnose(job.table()).ranks == ()


@pytest.mark.parametrize(("dp", "pp"), [(8, 1), (4, 4)])
def test_transfers_that_grow_are_the_network(dp: int, pp: int) -> None:
    """Nobody arrives later than before, and no rank is named."""
    job = SmallJob(dp=dp, pp=pp)
    job.transfer[10:] *= 6.0
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks, verdict.first_step) == (Cause.NETWORK, (), 10)


def test_a_group_slower_than_groups_like_it_is_the_network() -> None:
    """Even if it has been so since the table began."""
    job = SmallJob(dp=4, pp=4)
    job.transfer[:, 0] *= 8.0
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.NETWORK, ())
    assert verdict.evidence["slow_transfers"][0]["of"] == "all_reduce in dp_0"  # type: ignore[index]


def test_a_wait_for_a_rank_outside_the_table_is_not_called_network() -> None:
    """The table does not hold the rank that is waited for."""
    table = SmallJob().slow_rank(6, 1.3).table()
    verdict = diagnose(table.take(table.rank != 6))
    assert (verdict.cause, verdict.ranks) == (Cause.INCONCLUSIVE, ())
    assert "missing" in str(verdict.evidence["why"])


def test_a_rank_that_waits_for_its_data_is_a_slow_rank_in_data_loading() -> None:
    """Its compute is as fast as its peers'."""
    job = SmallJob()
    job.loading[8:, 3] *= 8.0
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.phase) == (Cause.SLOW_RANK, SlowPhase.DATA_LOADING)
    assert (verdict.ranks, verdict.first_step) == ((3,), 8)


@pytest.mark.parametrize(
    ("operation", "phase"),
    [("save_checkpoint", SlowPhase.CHECKPOINT), ("evaluation", SlowPhase.OTHER)],
)
def test_slow_host_work_of_a_rank(operation: str, phase: SlowPhase) -> None:
    """The name of the operation tells a checkpoint from other host work."""
    job = SmallJob()
    job.loading[8:, 3] *= 8.0
    table = job.table()
    table = replace(
        table,
        kind=np.where(table.kind == Kind.DATA_LOADING, Kind.OTHER, table.kind),
        operations=tuple(operation if name == "load" else name for name in table.operations),
    )
    verdict = diagnose(table)
    assert (verdict.cause, verdict.phase, verdict.ranks) == (Cause.SLOW_RANK, phase, (3,))


def test_a_stage_whose_ranks_all_load_slowly_is_named_as_data_loading_and_no_rank() -> None:
    """A stage has no peers, and may load more by design."""
    job = SmallJob(dp=4, pp=4)
    job.loading[:, :, 3] *= 20.0
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.DATA_LOADING, ())
    assert verdict.evidence["stages"] == [3]


def test_where_all_ranks_wait_for_data_none_is_named() -> None:
    """The cost is an upper bound, and said to be one."""
    job = SmallJob()
    job.loading *= 15.0
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.DATA_LOADING, ())
    assert verdict.evidence["slowdown_is_upper_bound"] is True


def test_a_table_without_replicas_and_groups_is_enough_for_a_slow_rank() -> None:
    """As a file without the optional columns gives it."""
    table = SmallJob().slow_rank(5, 1.1).table()
    nothing = np.zeros_like(table.group)
    assert diagnose(replace(table, replica=nothing, group=nothing)).ranks == (5,)


def test_compute_rows_alone_are_enough() -> None:
    """Of some ranks only."""
    table = SmallJob(dp=8, pp=2).slow_rank(6, 1.2).table()
    assert diagnose(table.take((table.kind == Kind.COMPUTE) & (table.rank < 12))).ranks == (6,)


def test_the_order_of_rows_is_of_no_account() -> None:
    """A table may hold them in any."""
    table = SmallJob(dp=4, pp=4).slow_rank(6, 1.2).table()
    order = np.random.default_rng(0).permutation(len(table))
    mixed = diagnose(table.take(order))
    assert (mixed.ranks, mixed.slowdown) == ((6,), pytest.approx(diagnose(table).slowdown))


def test_durations_without_any_noise_are_no_trouble() -> None:
    """A table may come from a model."""
    job = SmallJob(noise=0.0).slow_rank(5, 1.1)
    assert diagnose(job.table()).ranks == (5,)


def test_too_few_steps_or_ranks_are_inconclusive() -> None:
    """One slow step is an event."""
    table = SmallJob().slow_rank(5, 2.0).table()
    assert diagnose(table.take(table.step < 3)).cause is Cause.INCONCLUSIVE
    assert diagnose(table.take(table.rank == 5)).cause is Cause.INCONCLUSIVE
    assert diagnose(table.take(table.rank < 0)).cause is Cause.INCONCLUSIVE


def _last_end(table: object) -> float:
    return float((table.start_seconds + table.duration_seconds).max())  # type: ignore[attr-defined]
