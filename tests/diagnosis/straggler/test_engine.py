"""From a table of operations to a verdict, on jobs made without the engine or the simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.causes.slow_ranks import find_slow_ranks
from rankwatch_diagnosis.straggler.difficulty import separate
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.straggler.verdict import Verdict
from rankwatch_diagnosis.straggler.visits import measure_visits
from support.diagnosis.operations import SmallJob, last_end

SHAPES = [(8, 1), (4, 4), (8, 2), (16, 1)]


@pytest.mark.parametrize(("dp", "pp"), SHAPES)
def test_healthy_job(dp: int, pp: int) -> None:
    """Neither a rank nor a cause is named."""
    verdict = diagnose(SmallJob(dp=dp, pp=pp).table())
    assert (verdict.cause, verdict.ranks, verdict.stages, verdict.first_step) == (Cause.NONE, (), (), None)
    assert (verdict.slowdown, verdict.lost_rank_seconds) == (1.0, 0.0)


@pytest.mark.parametrize(("dp", "pp"), SHAPES)
@pytest.mark.parametrize("factor", [1.05, 1.2, 2.0])
def test_slow_rank(dp: int, pp: int, factor: float) -> None:
    """It is named in every shape of job, down to 5 %, with the size of the excess."""
    job = SmallJob(dp=dp, pp=pp).slow_rank(5, factor)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (5,))
    (named,) = verdict.evidence["slow_ranks"]  # type: ignore[misc, attr-defined]
    assert named["slower_by_ratio"] == pytest.approx(factor - 1.0, abs=0.02)


GRID = partial(SmallJob, dp=4, pp=4)


def names(cause: Cause, *ranks: int, why: str = "", **more: object) -> dict[str, object]:
    """What a verdict says; `why` is a part of the reason in its evidence."""
    return {"cause": cause, "ranks": ranks, "why": why, **more}


def times(job: SmallJob, of: str, where: Any, factor: Any) -> SmallJob:
    """The job, whose compute, transfer or loading takes so many times as long there."""
    getattr(job, of)[where] *= factor
    return job


def with_work(job: SmallJob) -> SmallJob:
    """The job, with the work units of its microbatches as they are now."""
    job.work = 1000.0 * job.compute[:, :, 0, :]
    return job


VERDICTS = {
    # It is where the slowness began, not where the table begins.
    "first step": (GRID().slow_rank(6, 1.2, first=9), names(Cause.SLOW_RANK, 6, first_step=9)),
    # It is found, although the median of the whole run does not show it.
    "past episode": (SmallJob().slow_rank(2, 1.3, first=5, end=13), names(Cause.SLOW_RANK, 2, first_step=5)),
    # Each is named by its own residual.
    "several slow ranks": (GRID().slow_rank(6, 1.2).slow_rank(9, 1.3), names(Cause.SLOW_RANK, 6, 9)),
    # Without a second stage, only work units tell a slow rank from long microbatches.
    "work units": (with_work(SmallJob().uneven(0.3)).slow_rank(6, 1.2), names(Cause.SLOW_RANK, 6)),
    "no work units": (
        SmallJob().uneven(0.3).slow_rank(3, 1.4),
        names(Cause.INCONCLUSIVE, why="no work units"),
    ),
    # Work units show that it is not slow.
    "rank with more work": (with_work(SmallJob().slow_rank(3, 1.3)), names(Cause.UNEQUAL_BATCHES)),
    # Its ranks share their microbatches, so it abstains.
    "slow replica": (times(GRID(), "compute", np.s_[:, 1], 1.3), names(Cause.INCONCLUSIVE)),
    # Neither is the odd one if nothing else shows how far ranks differ, or if they differ by little.
    "pair": (SmallJob(dp=2).slow_rank(1, 1.2), names(Cause.INCONCLUSIVE)),
    "pair, a little slow": (SmallJob(dp=2, pp=4).slow_rank(1, 1.06), names(Cause.INCONCLUSIVE)),
    # The rank that became slower is compared with its own past.
    "pair with a change": (
        SmallJob(dp=2, pp=4).slow_rank(1, 1.2, first=12),
        names(Cause.SLOW_RANK, 1, first_step=12),
    ),
    # Where the pairs of all stages differ, none of them is odd.
    "pairs with unequal accelerators": (
        times(
            SmallJob(dp=2, pp=4),
            "compute",
            ...,
            np.array([[1.0, 1.15, 1.0, 1.12], [1.13, 1.0, 1.16, 1.0]])[None, :, :, None],
        ),
        {"ranks": ()},
    ),
    # A heavy stage and a slow rank look the same, so neither is named.
    "single replica": (SmallJob(dp=1, pp=4).slow_rank(1, 1.3), names(Cause.INCONCLUSIVE, stages=())),
    # It is heavy in every replica, so no rank of it is to blame.
    "slow stage": (times(GRID(), "compute", np.s_[:, :, 3], 1.3), names(Cause.SLOW_STAGE, stages=(3,))),
    # Embedding and head make it a little heavier on purpose.
    "end stage": (times(GRID(), "compute", np.s_[:, :, 3], 1.08), {"cause": Cause.NONE}),
    # No rank arrives later than before, so it is the network and no rank.
    "growing transfers": (
        times(SmallJob(), "transfer", np.s_[10:], 6.0),
        names(Cause.NETWORK, first_step=10),
    ),
    "growing transfers of a pipeline": (
        times(GRID(), "transfer", np.s_[10:], 6.0),
        names(Cause.NETWORK, first_step=10),
    ),
    # Its compute is as fast as its peers'.
    "data loading of a rank": (
        times(SmallJob(), "loading", np.s_[8:, 3], 8.0),
        names(Cause.SLOW_RANK, 3, phase=SlowPhase.DATA_LOADING, first_step=8),
    ),
    # A stage has no peers and may load more by design.
    "data loading of a stage": (
        times(GRID(), "loading", np.s_[:, :, 3], 20.0),
        names(Cause.DATA_LOADING, evidence={"stages": [3]}),
    ),
    # The cost is an upper bound.
    "data loading of all ranks": (
        times(SmallJob(), "loading", ..., 15.0),
        names(Cause.DATA_LOADING, evidence={"slowdown_is_upper_bound": True}),
    ),
    # The other ranks of its replica had the same microbatches.
    "slow rank among unequal batches": (GRID().uneven(0.3).slow_rank(6, 1.2), names(Cause.SLOW_RANK, 6)),
    # A table may come from a model, without any noise.
    "no noise": (SmallJob(noise=0.0).slow_rank(5, 1.1), names(Cause.SLOW_RANK, 5)),
}


@pytest.mark.parametrize(("job", "expected"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdict(job: SmallJob, expected: dict[str, Any]) -> None:
    """What is at fault, since when, and nobody where the table does not prove it."""
    verdict = diagnose(job.table())
    facts = {**vars(verdict), "evidence": dict(verdict.evidence)}
    evidence, why = (expected.get(each, {}) for each in ("evidence", "why"))
    assert {name: facts[name] for name in expected.keys() - {"evidence", "why"}} == {
        name: value for name, value in expected.items() if name not in ("evidence", "why")
    }
    assert evidence.items() <= facts["evidence"].items()
    assert not why or why in str(facts["evidence"]["why"])


@pytest.mark.parametrize("steps", [np.arange(0, 30, 3), np.r_[4:9, 20:24], np.array([2, 9, 11, 17, 22, 28])])
def test_part_of_the_steps(steps: np.ndarray) -> None:
    """A rank that is slow in less than half of its window is named. It costs what these steps cost."""
    job = SmallJob(dp=4, pp=4, steps=30, noise=0.01)
    healthy, job.random = last_end(job.table()), np.random.default_rng(job.seed)
    table = times(job, "compute", np.s_[steps, 1, 2], 1.5).table()
    verdict = diagnose(table)
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (6,))
    assert verdict.slowdown - 1.0 == pytest.approx(last_end(table) / healthy - 1.0, rel=0.05)
    cause = verdict.causes[0]
    assert cause.share_of_steps == pytest.approx(len(steps) / 30)
    assert (cause.first_step, cause.last_step) == (steps[0], steps[-1])


def test_operations_of_a_slow_rank() -> None:
    """Each of its operations is priced by its own excess: here the backward passes alone are slow."""
    table = SmallJob(noise=0.01).table()
    slow = (table.operation == table.operations.index("backward")) & (table.rank == 3)
    table = replace(table, duration_seconds=np.where(slow, 1.4, 1.0) * table.duration_seconds)
    case = Case(table, DEFAULT)
    visits = measure_visits(table, least_steps=DEFAULT.steps)
    assert visits is not None
    (found,), _ = find_slow_ranks(case, visits, separate(visits))
    without = case.seconds.copy()
    without[found.ideal.rows] = found.ideal.seconds
    for name, factor in (("backward", 1.4), ("forward", 1.0)):
        rows = (case.table.operation == table.operations.index(name)) & (case.table.rank == 3)
        assert float(np.median(case.seconds[rows] / without[rows])) == pytest.approx(factor, abs=0.02)


@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_accelerators_that_differ(spread: float) -> None:
    """Healthy ones are not named, and one that slows down by more than they differ is."""
    named = 0
    for seed in range(12):
        job = SmallJob(dp=16, noise=0.02, seed=seed)
        job.compute *= np.exp(spread * job.random.standard_normal((1, 16, 1, 1)))
        named += bool(diagnose(job.table()).ranks)
        verdict = diagnose(job.slow_rank(6, 1.08, first=12).table())
        assert any(6 in each.ranks for each in verdict.causes), seed
    assert named <= 1


def test_blip_beside_a_slow_rank() -> None:
    """A rank that was a little slow for 13 of 600 steps, long ago, is not named beside one that is slow, but
    is in the evidence. One that has become slow just now is a cause of its own, however little that has cost,
    and so is one that was slower for longer."""

    def beside(factor: float, first: int, end: int | None) -> Verdict:
        job = SmallJob(steps=600, noise=0.01, microbatches=2).slow_rank(2, 1.5)
        return diagnose(job.slow_rank(6, factor, first=first, end=end).table())

    verdict = beside(1.05, 300, 313)
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (2,))
    (blip,) = verdict.evidence["past_blips"]  # type: ignore[misc, attr-defined]
    assert blip["rank"] == 6
    slow, new = beside(1.05, 587, None).causes
    assert (slow.ranks, new.ranks, new.first_step) == ((2,), (6,), pytest.approx(587, abs=2))
    slow, past = beside(1.3, 300, 330).causes
    assert (slow.ranks, past.ranks, past.first_step, past.last_step) == ((2,), (6,), 300, 329)


@pytest.mark.parametrize("messages", [True, False])
def test_slowdown_in_a_pipeline(messages: bool) -> None:
    """With rows of sends and receives, and by the order of stages without them."""
    slow = SmallJob(dp=4, pp=4, noise=0.01, with_messages=messages).slow_rank(6, 1.5).table()
    healthy = SmallJob(dp=4, pp=4, noise=0.01, with_messages=messages).table()
    assert diagnose(slow).slowdown == pytest.approx(last_end(slow) / last_end(healthy), rel=0.03)


@pytest.mark.parametrize(("dp", "pp"), SHAPES)
def test_unequal_batches(dp: int, pp: int) -> None:
    """A long microbatch is long wherever it goes, so no rank is named."""
    verdict = diagnose(SmallJob(dp=dp, pp=pp).uneven(0.3).table())
    assert (verdict.cause, verdict.ranks) == (Cause.UNEQUAL_BATCHES, ())


@pytest.mark.parametrize(("rank", "factor"), [(0, 1.2), (3, 1.5), (7, 2.0)])
def test_slow_one_of_a_pair(rank: int, factor: float) -> None:
    """The pairs of other stages differ by nothing, and no accelerator is too fast by that much."""
    table = SmallJob(dp=2, pp=4).slow_rank(rank, factor).table()
    verdict = diagnose(table)
    assert (verdict.cause, verdict.ranks, verdict.stages) == (Cause.SLOW_RANK, (rank,), ())
    truth = last_end(table) / last_end(SmallJob(dp=2, pp=4).table())
    assert verdict.slowdown == pytest.approx(truth, rel=0.02)


def test_two_slow_ranks_of_a_pair() -> None:
    """One is always slow and the other at times. When both are, their stage is not to blame."""
    job = SmallJob(dp=2, pp=4, noise=0.01, steps=30).slow_rank(1, 1.5)
    job.compute[::3, 1, 1] *= 1.5
    verdict = diagnose(job.table())
    assert {rank for each in verdict.causes for rank in each.ranks} == {1, 5}
    assert [each.stages for each in verdict.causes if each.stages] == []


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize(("dp", "pp"), [(8, 1), (4, 4)])
def test_jitter(dp: int, pp: int, microbatches: int) -> None:
    """Ranks are late in turn, and none for long."""
    job = SmallJob(dp=dp, pp=pp, microbatches=microbatches)
    late_at_random(job, 0.08, 1.5)
    verdict = diagnose(job.table())
    assert (verdict.cause, verdict.ranks) == (Cause.JITTER, ())


def late_at_random(job: SmallJob, share: float, factor: float) -> None:
    """A rank is late in this share of its steps."""
    hit = job.random.random((job.steps, job.dp, job.pp, 1)) < share
    job.compute *= np.where(hit, factor, 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_chance_run_of_late_steps(seed: int) -> None:
    """With one late step in five, some rank is late four times in a row by chance."""
    job = SmallJob(dp=32, microbatches=2, seed=seed)
    late_at_random(job, 0.2, 1.3)
    assert diagnose(job.table()).ranks == ()


def test_late_in_the_same_operations() -> None:
    """A host that falls behind at two of eight microbatches is no chance, and costs what they grow."""
    usual, late = (
        times(
            SmallJob(dp=4, pp=4, microbatches=8, noise=0.005), "compute", np.s_[:, 2, 1, 5:7], factor
        ).table()
        for factor in (1.0, 1.5)
    )
    verdict = diagnose(late)
    assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (9,))
    truth = Case(late, DEFAULT).step_seconds.sum() / Case(usual, DEFAULT).step_seconds.sum()
    assert verdict.slowdown == pytest.approx(truth, rel=0.01)


def test_slow_group() -> None:
    """It is seen against groups like it, even if it has been slow since the table began."""
    verdict = diagnose(times(GRID(), "transfer", np.s_[:, 0], 8.0).table())
    assert (verdict.cause, verdict.ranks) == (Cause.NETWORK, ())
    assert verdict.evidence["slow_transfers"][0]["of"] == "all_reduce in dp_0"  # type: ignore[index]


def test_missing_rank() -> None:
    """A wait for a rank that the table lacks looks like a transfer, so it abstains."""
    table = SmallJob().slow_rank(6, 1.3).table()
    verdict = diagnose(table.take(table.rank != 6))
    assert (verdict.cause, verdict.ranks) == (Cause.INCONCLUSIVE, ())
    assert "missing" in str(verdict.evidence["why"])


@pytest.mark.parametrize(
    ("operation", "phase"), [("save_checkpoint", SlowPhase.CHECKPOINT), ("evaluation", SlowPhase.OTHER)]
)
def test_slow_host_work_of_a_rank(operation: str, phase: SlowPhase) -> None:
    """The name of the operation tells a checkpoint from other host work."""
    table = times(SmallJob(), "loading", np.s_[8:, 3], 8.0).table()
    table = replace(
        table,
        kind=np.where(table.kind == Kind.DATA_LOADING, Kind.OTHER, table.kind),
        operations=tuple(operation if name == "load" else name for name in table.operations),
    )
    verdict = diagnose(table)
    assert (verdict.cause, verdict.phase, verdict.ranks) == (Cause.SLOW_RANK, phase, (3,))


def test_table_without_replicas_and_groups() -> None:
    """A file without the optional columns is enough for a slow rank."""
    table = SmallJob().slow_rank(5, 1.1).table()
    nothing = np.zeros_like(table.group)
    assert diagnose(replace(table, replica=nothing, group=nothing)).ranks == (5,)


def test_compute_rows_alone() -> None:
    """They are enough, even of some ranks only."""
    table = SmallJob(dp=8, pp=2).slow_rank(6, 1.2).table()
    assert diagnose(table.take((table.kind == Kind.COMPUTE) & (table.rank < 12))).ranks == (6,)


def test_order_of_rows() -> None:
    """A table may hold its rows in any order."""
    table = SmallJob(dp=4, pp=4).slow_rank(6, 1.2).table()
    order = np.random.default_rng(0).permutation(len(table))
    mixed = diagnose(table.take(order))
    assert (mixed.ranks, mixed.slowdown) == ((6,), pytest.approx(diagnose(table).slowdown))


@pytest.mark.parametrize(("dp", "pp"), [(8, 1), (4, 4)])
@pytest.mark.parametrize("steps", [1, 3])
def test_few_steps(dp: int, pp: int, steps: int) -> None:
    """The microbatches of one step are repeats, with the rate of false alarms that whole steps have."""
    named = 0
    for seed in range(12):
        job = SmallJob(dp=dp, pp=pp, microbatches=8, steps=steps, seed=seed, noise=0.02)
        named += bool(diagnose(job.table()).ranks)
        verdict = diagnose(job.slow_rank(5, 1.08).table())
        assert (verdict.cause, verdict.ranks) == (Cause.SLOW_RANK, (5,)), seed
        assert (verdict.first_step, verdict.causes[0].share_of_steps) == (0, 1.0)
    assert named == 0


def test_layers_of_one_step() -> None:
    """Pure data parallelism without microbatches: the kernels of one step are repeats."""
    table = SmallJob(microbatches=16, steps=1, noise=0.02).slow_rank(3, 1.15).table()
    assert diagnose(replace(table, microbatch=np.zeros_like(table.microbatch))).ranks == (3,)


def test_too_small_table() -> None:
    """Too few operations or ranks are inconclusive: one slow step is an event."""
    short = SmallJob(microbatches=1).slow_rank(5, 2.0).table()
    verdict = diagnose(short.take(short.step < 3))
    assert verdict.cause is Cause.INCONCLUSIVE
    assert "could take their place" in str(verdict.evidence["why"])
    table = SmallJob().slow_rank(5, 2.0).table()
    assert diagnose(table.take(table.rank == 5)).cause is Cause.INCONCLUSIVE
    assert diagnose(table.take(table.rank < 0)).cause is Cause.INCONCLUSIVE
