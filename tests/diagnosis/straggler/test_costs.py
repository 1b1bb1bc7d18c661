"""What a cause costs, against the same random numbers without it."""

from __future__ import annotations

import pytest

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.job import Job, simulate
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.workload import Noise
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.verdict import Verdict


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
