"""A simulated job: its table of operations, and the truth about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.simulation.durations import Setting, difficulty, durations
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.program import plan
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.timeline import OperationRows, Timeline, run_program
from rankwatch_diagnosis.simulation.workload import CONTEXT_TOKENS, Noise, Workload, draw, squared_lengths

MOST_ROWS = 20_000_000
"""Of a table: 1.5 GB of columns, and as much again while they are made."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that determines a simulated job."""

    shape: JobShape = field(default_factory=JobShape)
    workload: Workload = field(default_factory=Workload)
    noise: Noise = field(default_factory=Noise)
    fault: Fault = field(default_factory=Fault)
    steps: int = 40
    seed: int = 0
    with_work: bool = False
    """Write units of work on forward and backward: the cost that a trainer can compute beforehand."""

    def check(self) -> None:
        """Raises UserError where the parts do not fit, or the job is too large."""
        if self.steps < 1:
            raise UserError(f"steps is {self.steps}, expected at least 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}, expected at least 0")
        self.fault.check(self.shape, self.steps)
        # At most 8 operations for each microbatch: forward and backward, each with recv, reduce and send.
        rows = self.shape.ranks * self.steps * (8 * self.shape.microbatches + 5)
        if rows > MOST_ROWS:
            raise UserError(f"the job has up to {rows:,} operations, expected at most {MOST_ROWS:,}")


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What a diagnosis of the job ought to say."""

    cause: Cause
    phase: SlowPhase | None
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    first_step: int | None
    slowdown: float
    """Duration of the run over that of the same run, with the same random numbers, without the cause.

    Of `jitter` that is a run without any delays: those of a healthy job (`Noise.outlier_probability`) are
    of the same kind as those of the fault, and cannot be told from them.
    """
    active_slowdown: float
    """The same for the fault alone, over the steps in which it is active."""
    lost_rank_seconds: float

    def as_json(self) -> dict[str, object]:
        """Ready for json.dumps."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A run of a job."""

    table: OperationTable
    truth: Truth
    step_seconds: NDArray[np.float64]
    """Duration of each step, of the slowest rank."""


def simulate(job: Job) -> SimulatedJob:
    """Run the job twice, with its fault and without. Raises UserError for a job that cannot be."""
    job.check()
    setting = setting_of(job)
    healthy = replace(job.fault, cause=Cause.NONE)
    timeline = run_program(job.shape, setting.program, durations(setting, job.fault))
    ideal = run_program(job.shape, setting.program, durations(setting, healthy))
    rows = OperationRows(job.shape, setting.program, job.steps)
    # Cost in tokens: what does not grow with length, and attention in proportion to squared lengths.
    work = CONTEXT_TOKENS * difficulty(setting, job.fault) if job.with_work else None
    return SimulatedJob(
        table=rows.table(timeline, setting.draws.clock_offset_seconds, work),
        truth=_truth(job, timeline, ideal, _without_cause_seconds(job, setting, ideal)),
        step_seconds=np.diff(timeline.step_ends(), prepend=0.0),
    )


def setting_of(job: Job) -> Setting:
    """What both runs share. Each kind of chance has a stream of its own: no fault changes other numbers."""
    seeds = np.random.SeedSequence(job.seed).spawn(3)
    noise, lengths, pausing = (np.random.default_rng(each) for each in seeds)
    program = plan(job.shape)
    size = (job.steps, job.shape.pipeline_parallel, job.shape.data_parallel, job.shape.tensor_parallel)
    pauses = pausing.standard_exponential(size) * (pausing.random(size) < job.fault.probability)
    return Setting(
        shape=job.shape,
        workload=job.workload,
        program=program,
        draws=draw(job.noise, job.shape, program, job.steps, noise),
        squared_lengths=squared_lengths(job.shape, job.steps, lengths),
        pauses=pauses,
    )


def _without_cause_seconds(job: Job, setting: Setting, healthy: Timeline) -> float:
    """Duration of the run without the cause of the fault, including what a healthy job has of it."""
    if job.fault.cause is not Cause.JITTER:
        return healthy.run_seconds()
    draws = setting.draws
    undelayed = tuple(
        delays.taken_out(each) for delays, each in zip(draws.delays, draws.operations, strict=True)
    )
    quiet = setting._replace(draws=draws._replace(operations=undelayed))
    return run_program(
        job.shape, setting.program, durations(quiet, replace(job.fault, cause=Cause.NONE))
    ).run_seconds()


def _truth(job: Job, timeline: Timeline, ideal: Timeline, without_cause_seconds: float) -> Truth:
    fault = job.fault
    active = fault.active(job.steps)
    seconds = np.diff(timeline.step_ends(), prepend=0.0)
    ideal_seconds = np.diff(ideal.step_ends(), prepend=0.0)
    blamed = fault.cause in (Cause.SLOW_RANK, Cause.NETWORK)
    return Truth(
        cause=fault.cause,
        phase=fault.phase if fault.cause is Cause.SLOW_RANK else None,
        ranks=tuple(sorted(fault.ranks)) if blamed else (),
        stages=(fault.stage,) if fault.cause is Cause.SLOW_STAGE and fault.stage is not None else (),
        first_step=int(np.argmax(active)) if active.any() else None,
        slowdown=timeline.run_seconds() / without_cause_seconds,
        active_slowdown=float(seconds[active].sum() / ideal_seconds[active].sum()) if active.any() else 1.0,
        lost_rank_seconds=(timeline.run_seconds() - without_cause_seconds) * job.shape.ranks,
    )
