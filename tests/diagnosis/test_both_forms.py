"""The engine and the alerts on the same simulated jobs.

The engine reads the table of operations. For the alerts the job's black boxes grow in simulated time, one
agent for each node of 8 ranks reads them, and the generated rules are evaluated over what the agents export.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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


def _case(
    fault: Fault,
    shape: JobShape = _REPLICAS,
    *,
    seconds: float | None = None,
    why: str = "",
    steps: int = 60,
    **job: Any,
) -> Case:
    """A job with this fault, which both forms must name; `why` the alerts alone are silent about it."""
    of_rank = fault.cause is Cause.SLOW_RANK
    return Case(
        job=Job(shape=shape, fault=fault, steps=steps, **{"seed": 1} | job),
        seconds=seconds or (_STRAGGLERS_SECONDS if of_rank else _CAUSES_SECONDS),
        expected=Outcome(
            fault.cause,
            fault.phase if of_rank else None,
            fault.ranks if of_rank else (),
            () if fault.stage is None else (fault.stage,),
        ),
        alerts_abstain=why,
    )


def _slow(rank: int, factor: float, phase: SlowPhase = SlowPhase.COMPUTE, **more: Any) -> Fault:
    return Fault(cause=Cause.SLOW_RANK, ranks=(rank,), factor=factor, phase=phase, **more)


def _of(cause: Cause, factor: float, **more: Any) -> Fault:
    return Fault(cause=cause, factor=factor, **more)


_JITTER: dict[str, Any] = {"steps": 90, "seed": 12, "seconds": _JITTER_SECONDS}
"""With this seed one rank holds 71 % of the lateness of some window, and 14 % of that of the run."""
_FROM_THE_MIDDLE: dict[str, Any] = {"steps": 240, "seconds": _WITH_PAST_SECONDS}
"""What others wait for must not pass for transfers that have become slow, nor the reverse."""


CASES = {
    "healthy, 5 % noise": _case(Fault(), noise=_NOISY),
    "healthy mesh": _case(Fault(), _MESH),
    "slow rank, 30 %": _case(_slow(5, 1.3)),
    "slow rank, 15 %, in a pipeline with 5 % noise": _case(_slow(12, 1.15), _PIPELINE, noise=_NOISY),
    "slow rank, 15 %, in a mesh": _case(_slow(11, 1.15), _MESH),
    "slow rank, 15 %, of 64 ranks": _case(_slow(33, 1.15), _SHARDS, noise=_QUIET),
    "slow rank, 5 %": _case(_slow(5, 1.05), why="a straggler of the rules needs 10 %"),
    "slow rank with one peer": _case(
        _slow(3, 1.3),
        replace(_STAGES, data_parallel=2),
        why="a straggler of the rules needs two peers; the engine has the pairs of other stages",
    ),
    "slow stage": _case(_of(Cause.SLOW_STAGE, 1.4, stage=2), _STAGES),
    "unequal batches with work units": _case(_of(Cause.UNEQUAL_BATCHES, 1.6), with_work=True),
    "unequal batches without work units": _case(_of(Cause.UNEQUAL_BATCHES, 1.6), _PIPELINE),
    "jitter": _case(_of(Cause.JITTER, 1.6), **_JITTER),
    "jitter, small": _case(
        _of(Cause.JITTER, 1.15), why="the rules see jitter from a quarter of a step on", **_JITTER
    ),
    "slow rank, 30 %, from the middle on": _case(
        _slow(5, 1.3, first_step=144), _ONE_MICROBATCH, **_FROM_THE_MIDDLE
    ),
    "network from the middle on": _case(
        _of(Cause.NETWORK, 3.0, first_step=144), _ONE_MICROBATCH, **_FROM_THE_MIDDLE
    ),
    "network, always slow": _case(
        _of(Cause.NETWORK, 8.0), _ONE_MICROBATCH, why="transfers are compared with their own past only"
    ),
    "data loading of one rank": _case(_slow(9, 15.0, SlowPhase.DATA_LOADING)),
    "other host work of one rank": _case(_slow(9, 30.0, SlowPhase.OTHER)),
    "data loading of all ranks": _case(_of(Cause.DATA_LOADING, 20.0)),
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
