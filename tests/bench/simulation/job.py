"""A simulated training job with a known fault: its table of operations, and the truth about it.

The default job is a clean model. `at_level` gives it what production jobs have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from bench.simulation.program import JobShape, Megatron, plan
from bench.simulation.recorder import EXACT, OperationRows, Recorder
from bench.simulation.timeline import Setting, Timeline, difficulty, durations, run_program
from bench.simulation.workload import (
    CONTEXT_TOKENS,
    Fault,
    Noise,
    Workload,
    draw,
    production_workload,
    squared_lengths,
)
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import OperationTable


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that determines a simulated job."""

    shape: JobShape = field(default_factory=JobShape)
    workload: Workload = field(default_factory=Workload)
    noise: Noise = field(default_factory=Noise)
    fault: Fault = field(default_factory=Fault)
    more_faults: tuple[Fault, ...] = ()
    """In the same run."""
    steps: int = 40
    seed: int = 0
    with_work: bool = False
    """Write units of work on forward and backward: the cost that a trainer can compute beforehand."""
    megatron: Megatron | None = None
    """The job runs the step of Megatron; None: that of the clean model."""
    recorder: Recorder = EXACT

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults that do something."""
        given = (self.fault, *self.more_faults)
        return tuple(each for each in given if each.cause is not Cause.NONE)


@dataclass(frozen=True, kw_only=True)
class TrueCause:
    """One fault of a job, and what it costs; by default none."""

    cause: Cause = Cause.NONE
    phase: SlowPhase | None = None
    ranks: tuple[int, ...] = ()
    """The recorded ranks in whose rows it shows."""
    stages: tuple[int, ...] = ()
    first_step: int | None = None
    share_of_steps: float = 0.0
    slowdown: float = 1.0
    """Duration of the run over that of the same run, with the same random numbers, without this cause. Of
    `jitter` that is a run without any delays: those of a healthy job (`Noise.outlier_probability`) are of the
    same kind as those of the fault, and cannot be told from them."""
    active_slowdown: float = 1.0
    """The same for the fault alone, over the steps in which it is active."""
    lost_rank_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Truth(TrueCause):
    """What a diagnosis of the job ought to say: the costliest cause, and all of them."""

    slowdown_if_all_fixed: float
    """Duration of the run over that of the same run without any of the faults."""
    causes: tuple[TrueCause, ...]
    """The costliest first."""


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A run of a job."""

    table: OperationTable
    truth: Truth
    step_seconds: NDArray[np.float64]
    """Duration of each step, of the slowest rank."""


def simulate(job: Job) -> SimulatedJob:
    """Run the job with its faults, and without each of them."""
    _check(job)
    setting = setting_of(job)
    reading = np.random.default_rng(np.random.SeedSequence(job.seed).spawn(4)[3])
    numbers = job.recorder.step_numbers(job.steps, reading)
    timeline = run_program(job.shape, setting.program, durations(setting, *job.faults))
    rows = OperationRows(job.shape, setting.program, numbers, job.recorder)
    # Cost in tokens: what does not grow with length, and attention in proportion to squared lengths.
    work = CONTEXT_TOKENS * difficulty(setting, *job.faults) if job.with_work else None
    read = job.recorder.as_read(timeline, reading)
    return SimulatedJob(
        table=rows.table(read, setting.draws.clock_offset_seconds, work),
        truth=_truth(job, setting, timeline, numbers),
        step_seconds=np.diff(timeline.step_ends(), prepend=0.0),
    )


def _check(job: Job) -> None:
    """Refuse a fault that strikes nothing, which a bench would count as one that nobody sees."""
    for fault in job.faults:
        assert 0 <= fault.first_step < job.steps, fault
        assert all(0 <= rank < job.shape.ranks for rank in fault.ranks), fault
        assert fault.ranks or fault.cause is not Cause.SLOW_RANK, fault
        assert fault.cause is not Cause.SLOW_STAGE or fault.stage in range(job.shape.pipeline_parallel), fault
        assert not fault.unrecorded or job.megatron is not None, "only such a job has pauses"


def slowdown_beyond_peers(job: Job, faults: Sequence[Fault]) -> float:
    """Duration of the run over that of the same run with what these faults strike at the level of its peers.
    No table tells a fault from a chip that was slow before, or from a stage that is heavier by design. So the
    ranks get chips from the middle of their peers, and the stages no extra work, besides losing the fault."""
    setting = setting_of(job)
    kept = [each for each in job.faults if each not in faults]
    ranks = setting.draws.ranks.copy()
    for rank in (rank for each in faults for rank in each.ranks):
        ranks[(slice(None), *job.shape.place(rank))] = 1.0
    stages = {each.stage for each in faults}
    plain = {
        name: 0.0
        for name, stage in (("first_stage_extra", 0), ("last_stage_extra", job.shape.pipeline_parallel - 1))
        if stage in stages
    }
    draws = setting.draws._replace(ranks=ranks)
    level = setting._replace(draws=draws, workload=replace(job.workload, **plain))
    return _seconds(job, setting, job.faults) / _seconds(job, level, kept)


def slowdown_of_delays(job: Job) -> float:
    """Duration of the run over that of the same run without any delay, healthy or not."""
    setting = setting_of(job)
    kept = [each for each in job.faults if each.cause is not Cause.JITTER]
    return _seconds(job, setting, job.faults) / _seconds(job, _undelayed(setting), kept)


def _seconds(job: Job, setting: Setting, faults: Sequence[Fault]) -> float:
    return run_program(job.shape, setting.program, durations(setting, *faults)).run_seconds()


def setting_of(job: Job) -> Setting:
    """What all runs share. Each kind of chance has a stream of its own: no fault changes other numbers."""
    seeds = np.random.SeedSequence(job.seed).spawn(3)
    noise, lengths, pausing = (np.random.default_rng(each) for each in seeds)
    program = plan(job.shape) if job.megatron is None else job.megatron.plan(job.shape)
    size = (job.steps, job.shape.pipeline_parallel, job.shape.data_parallel, job.shape.tensor_parallel)
    chances = [each.probability for each in job.faults if each.cause is Cause.JITTER]
    chance = chances[0] if chances else job.fault.probability
    pauses = pausing.standard_exponential(size) * (pausing.random(size) < chance)
    return Setting(
        shape=job.shape,
        workload=job.workload,
        program=program,
        draws=draw(job.noise, job.shape, program, job.steps, noise),
        squared_lengths=squared_lengths(job.shape, job.steps, lengths),
        pauses=pauses,
    )


def _undelayed(setting: Setting) -> Setting:
    """The same without the delays that a healthy job has."""
    draws = setting.draws
    operations = tuple(
        delays.taken_out(each) for delays, each in zip(draws.delays, draws.operations, strict=True)
    )
    return setting._replace(draws=draws._replace(operations=operations))


def _truth(job: Job, setting: Setting, timeline: Timeline, numbers: NDArray[np.int64]) -> Truth:
    causes = [_true_cause(job, fault, setting, timeline, numbers) for fault in job.faults]
    causes.sort(key=lambda each: each.slowdown, reverse=True)
    healthy = timeline if not causes else run_program(job.shape, setting.program, durations(setting))
    return Truth(
        **vars(causes[0] if causes else TrueCause()),
        slowdown_if_all_fixed=timeline.run_seconds() / healthy.run_seconds(),
        causes=tuple(causes),
    )


def _true_cause(
    job: Job, fault: Fault, setting: Setting, timeline: Timeline, numbers: NDArray[np.int64]
) -> TrueCause:
    others = [each for each in job.faults if each is not fault]
    ideal = run_program(job.shape, setting.program, durations(setting, *others))
    without = ideal
    if fault.cause is Cause.JITTER:
        without = run_program(job.shape, setting.program, durations(_undelayed(setting), *others))
    active = fault.active(job.steps)
    seconds, ideal_seconds = (np.diff(each.step_ends(), prepend=0.0)[active] for each in (timeline, ideal))
    blamed = fault.cause in (Cause.SLOW_RANK, Cause.NETWORK)
    return TrueCause(
        cause=fault.cause,
        phase=fault.phase if fault.cause is Cause.SLOW_RANK else None,
        ranks=job.recorder.recorded(job.shape, fault.ranks) if blamed else (),
        stages=(fault.stage,) if fault.cause is Cause.SLOW_STAGE and fault.stage is not None else (),
        first_step=int(numbers[np.argmax(active)]) if active.any() else None,
        share_of_steps=float(active.mean()),
        slowdown=timeline.run_seconds() / without.run_seconds(),
        active_slowdown=float(seconds.sum() / ideal_seconds.sum()) if active.any() else 1.0,
        lost_rank_seconds=(timeline.run_seconds() - without.run_seconds()) * job.shape.ranks,
    )


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
