"""The run that commands write as a table and as a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.simulation.black_boxes import write_job_boxes
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.conventions.states import Cause


@pytest.fixture(scope="package")
def slow_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boxes of a run of 8 ranks and 40 steps in which rank 5 is slow from step 20 on."""
    shape = JobShape(data_parallel=4, pipeline_parallel=2)
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(5,), factor=1.4, first_step=20)
    job = simulate(Job(shape=shape, fault=fault, steps=40, seed=3))
    directory = tmp_path_factory.mktemp("runs")
    write_job_boxes(job.table, shape, directory, run="job", seed=3)
    return directory / "job"
