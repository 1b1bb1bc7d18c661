"""What a cause costs, against the same random numbers without it, and what a job would gain without any."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault, Noise
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.verdict import Verdict
from support.diagnosis.operations import SmallJob, last_end
from support.retimer.real_jobs import ABSENT, TABLES, real


@pytest.mark.parametrize(("replicas", "microbatches"), [(16, 4), (64, 2), (128, 4)])
def test_cost_of_unequal_batches(replicas: int, microbatches: int) -> None:
    """With many ranks, one stage and no work units, the slowest rank sets the step and keeps its noise."""
    fault = Fault(cause=Cause.UNEQUAL_BATCHES, factor=1.6)
    shape = JobShape(data_parallel=replicas, microbatches=microbatches)
    _check(Job(shape=shape, fault=fault, noise=Noise(sigma=0.03), seed=5), Cause.UNEQUAL_BATCHES)


@pytest.mark.parametrize("replicas", [8, 256])
def test_cost_of_jitter(replicas: int) -> None:
    """Delays of a healthy job are taken out as well: they cannot be told from the others."""
    fault = Fault(cause=Cause.JITTER, probability=0.1, factor=1.1)
    shape = JobShape(data_parallel=replicas)
    _check(Job(shape=shape, fault=fault, noise=Noise(sigma=0.045), seed=6, steps=24), Cause.JITTER, 0.01)


@pytest.mark.parametrize(
    ("phase", "cause", "kind"),
    [
        (SlowPhase.DATA_LOADING, Cause.DATA_LOADING, "data_loading"),
        (SlowPhase.OTHER, Cause.SLOW_STAGE, "other"),
    ],
)
def test_cost_of_host_work_of_a_stage(phase: SlowPhase, cause: Cause, kind: str) -> None:
    """A node holds a whole stage: data loading, which two stages do, and work that all stages do."""
    fault = Fault(cause=Cause.SLOW_RANK, phase=phase, ranks=tuple(range(8)), factor=30.0, first_step=12)
    shape = JobShape(data_parallel=8, pipeline_parallel=4, microbatches=8)
    verdict = _check(Job(shape=shape, fault=fault, seed=7), cause)
    assert verdict.ranks == ()
    work = verdict.evidence["host_work"]
    assert {each["kind"] for each in work} == {kind}  # type: ignore[attr-defined]


def _check(job: Job, cause: Cause, within: float = 0.03) -> Verdict:
    done = simulate(job)
    verdict = diagnose(done.table)
    assert verdict.cause is cause
    assert done.truth.slowdown > 1.03
    assert verdict.slowdown == pytest.approx(done.truth.slowdown, rel=within)
    return verdict


_SLOW_LOADING = Fault(
    cause=Cause.SLOW_RANK, ranks=(0,), phase=SlowPhase.DATA_LOADING, factor=25.0, first_step=25
)
SEVERAL = {
    "stage and rank": (
        Fault(cause=Cause.SLOW_STAGE, stage=2, factor=1.4),
        Fault(cause=Cause.SLOW_RANK, ranks=(5,), factor=2.0, first_step=20),
    ),
    "two ranks": (
        Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.4),
        Fault(cause=Cause.SLOW_RANK, ranks=(21,), factor=1.8, first_step=22),
    ),
    "link and loading": (Fault(cause=Cause.NETWORK, factor=8.0, first_step=15), _SLOW_LOADING),
    "jitter and rank": (
        Fault(cause=Cause.JITTER, probability=0.1, factor=1.2),
        Fault(cause=Cause.SLOW_RANK, ranks=(14,), factor=1.6, first_step=10),
    ),
    "three": (
        Fault(cause=Cause.SLOW_RANK, ranks=(9,), factor=1.8, first_step=5, duration=24),
        Fault(cause=Cause.NETWORK, factor=4.0, first_step=15),
        _SLOW_LOADING,
    ),
}


@pytest.mark.parametrize("faults", SEVERAL.values(), ids=SEVERAL)
def test_several_faults_at_once(faults: tuple[Fault, ...]) -> None:
    """All are listed, the costliest first, each with what the same run gains without it alone."""
    shape = JobShape(data_parallel=8, pipeline_parallel=4, microbatches=8)
    job = Job(shape=shape, fault=faults[0], more_faults=faults[1:], noise=Noise(sigma=0.02), seed=3)
    done = simulate(job)
    found = [each for each in diagnose(done.table).causes if each.certain]
    assert [(each.cause, each.phase, each.ranks, each.stages) for each in found] == [
        (each.cause, each.phase, each.ranks, each.stages) for each in done.truth.causes
    ]
    for each, truth in zip(found, done.truth.causes, strict=True):
        assert (each.slowdown or 0.0) - 1.0 == pytest.approx(truth.slowdown - 1.0, rel=0.05)
        assert each.lost_rank_seconds == pytest.approx(truth.lost_rank_seconds, rel=0.05)
        assert each.share_of_steps == pytest.approx(truth.share_of_steps, abs=0.05)


recorded = pytest.mark.skipif(not TABLES.is_dir(), reason=ABSENT)


@recorded
@pytest.mark.parametrize(
    ("name", "published", "by_operation"),
    [
        ("job-a", 1.9730, {"backward-compute": 1.5805, "forward-compute": 1.3689}),
        ("job-b", 1.1787, {"forward-compute": 1.0875, "backward-compute": 1.0742}),
    ],
)
def test_published_analysis(name: str, published: float, by_operation: Mapping[str, float]) -> None:
    """It is within 2 % of what the authors of the tables published for them, and so is each operation. Their
    results lie beside the tables in ByteDance-Seed/StragglerAnalysis: `blocking_slowdown` and
    `blocking_decompose_by_optype` in data/result-AR.json and data/result-ST.json."""
    verdict = diagnose(real(name).table)
    assert verdict.slowdown_if_all_fixed == pytest.approx(published, rel=0.02)
    held = _by_operation(verdict.evidence)
    assert list(held)[:2] == list(by_operation)
    assert {each: held[each] for each in by_operation} == pytest.approx(by_operation, rel=0.02)


def test_work_is_kept() -> None:
    """The seconds of a slow rank are spread over all ranks, so the ideal job computes as much as this one."""
    even = SmallJob(dp=8, noise=0.0)
    even.compute *= 9.0 / 8.0
    slow = SmallJob(dp=8, noise=0.0).slow_rank(3, 2.0).table()
    verdict = diagnose(slow)
    assert verdict.slowdown_if_all_fixed == pytest.approx(last_end(slow) / last_end(even.table()), rel=0.01)
    assert set(_by_operation(verdict.evidence)) == {"forward", "backward"}


def test_noise_costs_as_well() -> None:
    """A job without a cause waits for the latest of its ranks in every step."""
    verdict = diagnose(SmallJob(dp=16, noise=0.05).table())
    assert verdict.cause is Cause.NONE
    assert verdict.slowdown_if_all_fixed is not None
    assert 1.02 < verdict.slowdown_if_all_fixed < 1.2
    even = diagnose(SmallJob(dp=16, noise=0.0).table())
    assert even.slowdown_if_all_fixed == pytest.approx(1.0, abs=0.005)


def _by_operation(evidence: Mapping[str, object]) -> Mapping[str, float]:
    held = evidence["slowdown_by_operation"]
    assert isinstance(held, Mapping)
    return held
