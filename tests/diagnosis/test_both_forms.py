"""The engine and the alerts on the same simulated jobs.

The engine reads the table of operations. For the alerts the job's black boxes grow in simulated time, one
agent for each node of 8 ranks reads them, and the generated rules are evaluated over what the agents export.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault, Noise
from rankwatch.conventions.states import Cause, SlowPhase
from support.diagnosis.both_forms import NOTHING, Outcome, lasting, verdict_of_alerts, verdict_of_engine

_NOISY = Noise(sigma=0.05)
_QUIET = Noise(sigma=0.02)
_REPLICAS = JobShape(data_parallel=16)
_ONE_MICROBATCH = JobShape(data_parallel=16, microbatches=1)
_PIPELINE = JobShape(data_parallel=8, pipeline_parallel=2)
_STAGES = JobShape(data_parallel=4, pipeline_parallel=4, microbatches=2)
_MESH = JobShape(data_parallel=4, pipeline_parallel=4, tensor_parallel=2, microbatches=2)
_SHARDS = JobShape(data_parallel=16, tensor_parallel=4, microbatches=2)

_STRAGGLERS_SECONDS = 510.0
_CAUSES_SECONDS = 780.0
"""How long an alert takes, and some minutes: windows must fill, and what is seen must last."""
_JITTER_SECONDS = 1080.0
"""Late steps are counted from a rank's ninth on, and those of three ranks are needed."""
_WITH_PAST_SECONDS = 3360.0
"""Half an hour in which transfers are healthy, and what an alert of the network takes beyond."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, and the outcome that both forms must give."""

    job: Job
    seconds: float
    """Of its run."""
    expected: Outcome
    """By the engine, and by the alerts unless they abstain."""
    alerts_abstain: str = ""
    """Why the alerts are silent where the engine is not, by docs/stragglers.md."""


def _job(shape: JobShape, fault: Fault, noise: Noise | None = None, *, with_work: bool = False) -> Job:
    return Job(shape=shape, fault=fault, noise=noise or Noise(), steps=60, seed=1, with_work=with_work)


def _slow_rank(shape: JobShape, rank: int, factor: float, noise: Noise | None = None, why: str = "") -> Case:
    return Case(
        job=_job(shape, Fault(cause=Cause.SLOW_RANK, ranks=(rank,), factor=factor), noise),
        seconds=_STRAGGLERS_SECONDS,
        expected=Outcome(Cause.SLOW_RANK, SlowPhase.COMPUTE, ranks=(rank,)),
        alerts_abstain=why,
    )


def _nameless(job: Job, expected: Outcome, *, seconds: float = _CAUSES_SECONDS, why: str = "") -> Case:
    return Case(job=job, seconds=seconds, expected=expected, alerts_abstain=why)


def _jitter(factor: float, why: str = "") -> Case:
    # With this seed one rank holds 71 % of the lateness of some window, and 14 % of that of the run.
    job = replace(_job(_REPLICAS, Fault(cause=Cause.JITTER, factor=factor)), steps=90, seed=12)
    return _nameless(job, Outcome(Cause.JITTER), seconds=_JITTER_SECONDS, why=why)


def _from_the_middle(fault: Fault) -> Job:
    """What others wait for must not pass for transfers that have become slow, nor the reverse."""
    return replace(_job(_ONE_MICROBATCH, replace(fault, first_step=144)), steps=240)


_UNEQUAL = Fault(cause=Cause.UNEQUAL_BATCHES, factor=1.6)
_LOADING_OF_ONE = Fault(cause=Cause.SLOW_RANK, phase=SlowPhase.DATA_LOADING, ranks=(9,), factor=15.0)
_OTHER_OF_ONE = replace(_LOADING_OF_ONE, phase=SlowPhase.OTHER, factor=30.0)
_LOADING_OF_ALL = Fault(cause=Cause.DATA_LOADING, factor=20.0)
_OF_TWO = Fault(cause=Cause.SLOW_RANK, ranks=(3,), factor=1.3)

CASES = {
    "healthy, 5 % noise": _nameless(_job(_REPLICAS, Fault(), _NOISY), NOTHING),
    "healthy mesh": _nameless(_job(_MESH, Fault()), NOTHING),
    "slow rank, 30 %": _slow_rank(_REPLICAS, 5, 1.3),
    "slow rank, 15 %, in a pipeline with 5 % noise": _slow_rank(_PIPELINE, 12, 1.15, _NOISY),
    "slow rank, 15 %, in a mesh": _slow_rank(_MESH, 11, 1.15),
    "slow rank, 15 %, of 64 ranks": _slow_rank(_SHARDS, 33, 1.15, _QUIET),
    "slow rank, 5 %": _slow_rank(_REPLICAS, 5, 1.05, why="a straggler of the rules needs 10 %"),
    "slow rank with one peer": Case(
        job=_job(replace(_STAGES, data_parallel=2), _OF_TWO),
        seconds=_STRAGGLERS_SECONDS,
        expected=Outcome(Cause.SLOW_RANK, SlowPhase.COMPUTE, ranks=(3,)),
        alerts_abstain="a straggler of the rules needs two peers; the engine has the pairs of other stages",
    ),
    "slow stage": _nameless(
        _job(_STAGES, Fault(cause=Cause.SLOW_STAGE, stage=2, factor=1.4)),
        Outcome(Cause.SLOW_STAGE, stages=(2,)),
    ),
    "unequal batches with work units": _nameless(
        _job(_REPLICAS, _UNEQUAL, with_work=True), Outcome(Cause.UNEQUAL_BATCHES)
    ),
    "unequal batches without work units": _nameless(
        _job(_PIPELINE, _UNEQUAL), Outcome(Cause.UNEQUAL_BATCHES)
    ),
    "jitter": _jitter(1.6),
    "jitter, small": _jitter(1.15, why="the rules see jitter from a quarter of a step on"),
    "slow rank, 30 %, from the middle on": Case(
        job=_from_the_middle(Fault(cause=Cause.SLOW_RANK, ranks=(5,), factor=1.3)),
        seconds=_WITH_PAST_SECONDS,
        expected=Outcome(Cause.SLOW_RANK, SlowPhase.COMPUTE, ranks=(5,)),
    ),
    "network from the middle on": _nameless(
        _from_the_middle(Fault(cause=Cause.NETWORK, factor=3.0)),
        Outcome(Cause.NETWORK),
        seconds=_WITH_PAST_SECONDS,
    ),
    "network, always slow": _nameless(
        _job(_ONE_MICROBATCH, Fault(cause=Cause.NETWORK, factor=8.0)),
        Outcome(Cause.NETWORK),
        why="transfers are compared with their own past only",
    ),
    "data loading of one rank": Case(
        job=_job(_REPLICAS, _LOADING_OF_ONE),
        seconds=_STRAGGLERS_SECONDS,
        expected=Outcome(Cause.SLOW_RANK, SlowPhase.DATA_LOADING, ranks=(9,)),
    ),
    "other host work of one rank": Case(
        job=_job(_REPLICAS, _OTHER_OF_ONE),
        seconds=_STRAGGLERS_SECONDS,
        expected=Outcome(Cause.SLOW_RANK, SlowPhase.OTHER, ranks=(9,)),
    ),
    "data loading of all ranks": _nameless(_job(_REPLICAS, _LOADING_OF_ALL), Outcome(Cause.DATA_LOADING)),
}


@pytest.mark.process
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_verdict(case: Case, tmp_path: Path) -> None:
    """Cause, ranks and stages agree; where the alerts have too little to go on they are silent, not wrong."""
    job = lasting(case.job, case.seconds)
    run = simulate(job)
    engine = verdict_of_engine(run)
    assert engine == case.expected, f"the engine gives {engine}"
    alerts = verdict_of_alerts(run, job.shape, tmp_path)
    assert alerts == (NOTHING if case.alerts_abstain else case.expected), f"the alerts give {alerts}"
