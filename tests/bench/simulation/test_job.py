"""A simulated job: what its fault changes, and the truth about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.simulation.job import Job, setting_of, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import NO_NOISE, Fault, Noise, squared_lengths
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind

SHAPE = JobShape(data_parallel=4, pipeline_parallel=2, tensor_parallel=2)
CLEAN = Job(shape=SHAPE, steps=20, seed=7)
FAULTS = [
    Fault(cause=Cause.SLOW_RANK, ranks=(3, 9), factor=1.3),
    Fault(cause=Cause.SLOW_STAGE, stage=1, factor=1.3),
    Fault(cause=Cause.UNEQUAL_BATCHES, factor=1.5),
    Fault(cause=Cause.NETWORK, factor=3.0),
    Fault(cause=Cause.NETWORK, ranks=(5,), factor=3.0),
    Fault(cause=Cause.SLOW_RANK, phase=SlowPhase.OTHER, ranks=(2,), factor=30.0),
    Fault(cause=Cause.SLOW_RANK, phase=SlowPhase.DATA_LOADING, ranks=(2,), factor=30.0),
    Fault(cause=Cause.DATA_LOADING, factor=30.0),
    Fault(cause=Cause.JITTER, factor=1.3, probability=0.2),
]


def test_seed() -> None:
    """The same seed gives the same job to the last bit, another seed another job."""
    one, same, other = (simulate(replace(CLEAN, seed=seed)).table for seed in (1, 1, 2))
    assert (one.duration_seconds == same.duration_seconds).all()
    assert not np.allclose(one.duration_seconds, other.duration_seconds)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.cause}-{fault.phase}-{len(fault.ranks)}")
def test_fault_changes_only_its_operations(fault: Fault) -> None:
    """No fault changes the random numbers of other operations."""
    clean, faulty = simulate(CLEAN).table, simulate(replace(CLEAN, fault=fault)).table
    of = {kind: clean.kind == kind for kind in Kind}
    with np.errstate(invalid="ignore", divide="ignore"):  # a transfer may take no time
        grown = faulty.duration_seconds / clean.duration_seconds
    compute = grown[of[Kind.COMPUTE]]
    slow_phase = fault.phase if fault.cause is Cause.SLOW_RANK else None
    if slow_phase is SlowPhase.COMPUTE or fault.cause is Cause.SLOW_STAGE:
        struck = np.isin(clean.rank, fault.ranks)
        if fault.stage is not None:
            struck = (clean.stage == fault.stage) & (clean.operation != clean.operations.index("optimizer"))
        assert compute == pytest.approx(np.where(struck, 1.3, 1.0)[of[Kind.COMPUTE]])
    elif slow_phase is not None or fault.cause in (Cause.NETWORK, Cause.DATA_LOADING):
        assert compute == pytest.approx(1.0)
    else:
        assert compute.std() > 0.05
    for phase, kind in ((SlowPhase.DATA_LOADING, Kind.DATA_LOADING), (SlowPhase.OTHER, Kind.OTHER)):
        everywhere = kind is Kind.DATA_LOADING and fault.cause is Cause.DATA_LOADING
        struck = everywhere | ((slow_phase is phase) & (clean.rank == 2))
        assert grown[of[kind]] == pytest.approx(np.where(struck, 30.0, 1.0)[of[kind]])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.cause}-{fault.phase}-{len(fault.ranks)}")
def test_cost_of_a_fault(fault: Fault) -> None:
    """Slowdown and lost rank-seconds compare the run with the same run without the fault."""
    clean, faulty = simulate(CLEAN), simulate(replace(CLEAN, fault=fault))
    ideal, measured = clean.step_seconds.sum(), faulty.step_seconds.sum()
    assert faulty.truth.cause is fault.cause
    assert faulty.truth.slowdown == pytest.approx(measured / ideal)
    assert faulty.truth.slowdown > 1.005
    assert faulty.truth.lost_rank_seconds == pytest.approx((measured - ideal) * 16)


def test_healthy_job_costs_nothing() -> None:
    """And no rank is to blame."""
    truth = simulate(CLEAN).truth
    assert (truth.cause, truth.ranks, truth.stages, truth.first_step) == (Cause.NONE, (), (), None)
    assert (truth.slowdown, truth.active_slowdown, truth.lost_rank_seconds) == (1.0, 1.0, 0.0)


def test_episodes() -> None:
    """From step 4, for 12 steps, 2 of every 4."""
    fault = Fault(
        cause=Cause.SLOW_RANK, ranks=(0,), factor=2.0, first_step=4, duration=12, period=4, active_share=0.5
    )
    expected = [4, 5, 8, 9, 12, 13]
    assert np.flatnonzero(fault.active(20)).tolist() == expected
    clean, faulty = simulate(CLEAN).table, simulate(replace(CLEAN, fault=fault)).table
    slow = faulty.duration_seconds > 1.9 * clean.duration_seconds
    own = slow & (clean.rank == 0) & (clean.kind == Kind.COMPUTE)
    assert np.unique(clean.step[own]).tolist() == expected


def test_share_of_steps() -> None:
    """About that share of the steps, in the first half as in the second."""
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(0,), share_of_steps=0.3)
    active = fault.active(40)
    assert (active[:20].sum(), active[20:].sum()) == (7, 6)
    assert np.diff(np.flatnonzero(active)).max() <= 5


def test_several_faults() -> None:
    """Each costs what the run gains without it alone; the costliest is the head of the truth."""
    faults = (
        Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.1),
        Fault(cause=Cause.SLOW_RANK, ranks=(9,), factor=1.5),
        Fault(cause=Cause.SLOW_STAGE, stage=1, factor=1.2),
    )
    truth = simulate(replace(CLEAN, fault=faults[0], more_faults=faults[1:])).truth
    assert [(each.ranks, each.stages) for each in truth.causes] == [((9,), ()), ((), (1,)), ((3,), ())]
    assert (truth.ranks, truth.slowdown) == ((9,), truth.causes[0].slowdown)
    seconds = simulate(replace(CLEAN, fault=faults[0], more_faults=faults[1:])).step_seconds.sum()
    for fault, left in ((faults[0], faults[1:]), (faults[1], (faults[0], faults[2]))):
        ideal = simulate(replace(CLEAN, fault=left[0], more_faults=left[1:])).step_seconds.sum()
        cause = next(each for each in truth.causes if each.ranks == fault.ranks)
        assert cause.slowdown == pytest.approx(seconds / ideal)
    healthy = simulate(CLEAN).step_seconds.sum()
    assert truth.slowdown_if_all_fixed == pytest.approx(seconds / healthy)


def test_work_units() -> None:
    """Without noise, duration over work is the same for all microbatches of a stage; NaN is unknown work."""
    fault = Fault(cause=Cause.UNEQUAL_BATCHES, factor=1.6)
    table = simulate(replace(CLEAN, noise=NO_NOISE, fault=fault, with_work=True)).table
    forward = (table.operation == table.operations.index("forward")) & (table.stage == 0)
    rate = table.duration_seconds[forward] / table.work[forward]
    assert rate == pytest.approx(rate[0])
    assert np.ptp(table.work[forward]) > 0.2 * table.work[forward].mean()
    assert np.isnan(table.work[table.kind == Kind.COMMUNICATION]).all()
    assert np.isnan(simulate(CLEAN).table.work).all()


def test_noise() -> None:
    """The logarithm has the given standard deviation, and the mean duration does not move."""
    job = replace(
        CLEAN, noise=Noise(sigma=0.04, rank_sigma=0.0, drift_sigma=0.0, outlier_probability=0.0), steps=60
    )
    table = simulate(job).table
    forward = (table.operation == table.operations.index("forward")) & (table.stage == 0)
    logs = np.log(table.duration_seconds[forward])
    assert logs.std() == pytest.approx(0.04, rel=0.05)
    assert table.duration_seconds[forward].mean() == pytest.approx(0.0103, rel=0.01)


def test_drift() -> None:
    """Neighbouring steps are alike, distant ones are not."""
    noise = Noise(sigma=0.0, rank_sigma=0.0, drift_sigma=0.01, outlier_probability=0.0)
    table = simulate(replace(CLEAN, shape=JobShape(data_parallel=64), noise=noise, steps=80)).table
    optimizer = table.operation == table.operations.index("optimizer")
    logs = np.log(table.duration_seconds[optimizer].reshape(80, 64))
    assert logs.std() == pytest.approx(0.01, rel=0.2)
    assert np.corrcoef(logs[:-1].ravel(), logs[1:].ravel())[0, 1] == pytest.approx(0.905, abs=0.03)
    assert abs(np.corrcoef(logs[:-50].ravel(), logs[50:].ravel())[0, 1]) < 0.25


def test_squared_lengths() -> None:
    """A few microbatches hold one document that fills the context, so the tail is heavy."""
    sums = squared_lengths(JobShape(data_parallel=64, microbatches=8), 10, np.random.default_rng(1))
    assert sums.mean() == pytest.approx(1.0)
    assert sums.min() > 0.0
    assert np.quantile(sums, 0.99) - 1.0 > 1.5 * (1.0 - np.quantile(sums, 0.01))


TWO_STAGES = JobShape(data_parallel=8, pipeline_parallel=2)
PAUSES = Fault(cause=Cause.JITTER, probability=0.1, factor=1.1)


def test_cost_of_jitter() -> None:
    """Delays of a healthy job are of the same kind, so the run to compare with has neither."""
    truth = simulate(Job(shape=TWO_STAGES, fault=PAUSES, noise=Noise(outlier_probability=0.05))).truth
    assert truth.slowdown > truth.active_slowdown + 0.01
    quiet = simulate(Job(shape=TWO_STAGES, fault=PAUSES, noise=Noise(outlier_probability=0.0))).truth
    assert quiet.slowdown == pytest.approx(quiet.active_slowdown)


def test_noise_without_delays() -> None:
    """Taking the delays out changes no other number."""
    draws = setting_of(Job(shape=TWO_STAGES, noise=Noise(outlier_probability=0.05))).draws
    quiet = setting_of(Job(shape=TWO_STAGES, noise=Noise(outlier_probability=0.0))).draws
    np.testing.assert_allclose(draws.delays[0].taken_out(draws.operations[0]), quiet.operations[0])
    assert draws.delays[0].where.size > 0
