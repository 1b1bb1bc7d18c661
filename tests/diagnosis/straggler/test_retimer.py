"""The independent replay that judges the engine: it must be right itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause
from support.retimer.faults import SlowRank
from support.retimer.job import FaultyJob, base_of
from support.retimer.real_jobs import ABSENT, JOBS, KNOWN, TABLES, real, repaired

recorded = pytest.mark.skipif(not TABLES.is_dir(), reason=ABSENT)
SHAPES = [
    JobShape(data_parallel=8),
    JobShape(data_parallel=4, pipeline_parallel=4, microbatches=8),
    JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_simulated_fault(shape: JobShape) -> None:
    """A rank slowed in the replay of a healthy table costs what it costs in the simulator."""
    healthy = Job(shape=shape, steps=10)
    slow = replace(healthy, fault=Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.5))
    job = FaultyJob(base=base_of(simulate(healthy).table), faults=(SlowRank(rank=3, factor=1.5),))
    assert job.slowdown() == pytest.approx(simulate(slow).truth.slowdown, rel=0.005)


@recorded
@pytest.mark.parametrize("name", JOBS)
def test_recorded_steps(name: str) -> None:
    """Nobody leaves before the last has come, and usual transfers give the recorded steps again."""
    job = real(name)
    replay, seconds = job.replay, job.seconds.copy()
    assert replay.impossible(seconds) == 0.0
    exact = replay.step_seconds(replay.run(seconds))
    assert FaultyJob(base=job, faults=()).table().start_seconds == pytest.approx(job.table.start_seconds)
    for node in range(len(replay.program.nodes)):
        if replay.meets[node]:
            seconds.work[node] = np.median(seconds.work[node])
        if replay.before[node] >= 0:
            seconds.pause[node] = np.median(seconds.pause[node])
    usual = replay.step_seconds(replay.run(seconds))
    assert np.median(np.abs(usual / exact - 1.0)) < 1e-3


@recorded
@pytest.mark.parametrize(("name", "slowdown"), [("job-a", 2.02), ("job-b", 1.31)])
def test_known_cost(name: str, slowdown: float) -> None:
    """What is known to be wrong with a real job costs what others found by a replay of their own."""
    job = FaultyJob(base=repaired(name), faults=(KNOWN[name],))
    assert job.slowdown() == pytest.approx(slowdown, abs=0.01)
    original = job.base.table
    assert job.table().duration_seconds == pytest.approx(original.duration_seconds)
