"""How close to a production job a simulated one is: the clean model, or what the tables of real jobs have."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from rankwatch_diagnosis.simulation.job import Job
from rankwatch_diagnosis.simulation.megatron import Megatron, production_workload
from rankwatch_diagnosis.simulation.recorder import Recorder


class Level(StrEnum):
    """A level of realism."""

    CLEAN = "clean"
    REAL = "real"


REAL_RECORDER = Recorder(
    hides_waits=True,
    one_per_tensor_group=True,
    megatron=True,
    samples_steps=True,
    fuzz_seconds=0.000_02,
    launch_seconds=0.000_01,
)
"""Compute begins before the operation before it has ended in a third of the rows, by up to 0.11 ms."""
CHIP_SIGMA, DRIFT_SIGMA, DELAYED_SHARE = 0.01, 0.004, 0.01
"""Healthy chips differ, and one operation in a hundred is delayed."""


def at_level(job: Job, level: Level) -> Job:
    """The job as it would be in production, or as it is."""
    if level is Level.CLEAN:
        return job
    noise = replace(
        job.noise, rank_sigma=CHIP_SIGMA, drift_sigma=DRIFT_SIGMA, outlier_probability=DELAYED_SHARE
    )
    return replace(
        job, workload=production_workload(0.1), noise=noise, megatron=Megatron(), recorder=REAL_RECORDER
    )
