"""What a run with jitter is held against."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch.conventions import Cause
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.job import Job, setting_of, simulate
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.workload import Noise

SHAPE = JobShape(data_parallel=8, pipeline_parallel=2)
PAUSES = Fault(cause=Cause.JITTER, probability=0.1, factor=1.1)


def test_the_delays_of_a_healthy_job_count_as_jitter() -> None:
    """They are of one kind, so the run that it is held against has neither."""
    truth = simulate(Job(shape=SHAPE, fault=PAUSES, noise=Noise(outlier_probability=0.05))).truth
    assert truth.slowdown > truth.active_slowdown + 0.01
    quiet = simulate(Job(shape=SHAPE, fault=PAUSES, noise=Noise(outlier_probability=0.0))).truth
    assert quiet.slowdown == pytest.approx(quiet.active_slowdown)


def test_without_its_delays_a_job_has_the_same_noise() -> None:
    """No other number changes."""
    draws = setting_of(Job(shape=SHAPE, noise=Noise(outlier_probability=0.05))).draws
    quiet = setting_of(Job(shape=SHAPE, noise=Noise(outlier_probability=0.0))).draws
    np.testing.assert_allclose(draws.delays[0].taken_out(draws.operations[0]), quiet.operations[0])
    assert draws.delays[0].where.size > 0
