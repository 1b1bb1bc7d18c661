"""The simulated jobs: their shapes, noise and faults, each from its own seed."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bench.simulation.job import Job, SimulatedJob, Truth, simulate
from bench.simulation.program import RANKS_PER_NODE, JobShape
from bench.simulation.workload import Fault, Noise
from rankwatch.conventions.states import Cause, SlowPhase

SLOW_3 = "slow_rank 3 %"
SLOW_5 = "slow_rank 5 to 10 %"
SLOW_MORE = "slow_rank above 10 %"

_UNEQUAL, _STAGE, HOST_WORK = "unequal_batches", "slow_stage", "slow_rank, host work"
CYCLE = (
    *(SLOW_5, "none", SLOW_3, _UNEQUAL, SLOW_MORE, _STAGE, "none", "network", "jitter", HOST_WORK),
    *(SLOW_MORE, "none", SLOW_5, _UNEQUAL, SLOW_3, _STAGE, SLOW_5, "network", "jitter", HOST_WORK),
    *(SLOW_5, "none", SLOW_MORE, _UNEQUAL, SLOW_3, _STAGE, "none", "network", "jitter", HOST_WORK),
    *(SLOW_MORE, "none", SLOW_5, _UNEQUAL, SLOW_3, _STAGE, SLOW_5, "network", "jitter", HOST_WORK),
    *(SLOW_5, "none", SLOW_MORE, _UNEQUAL, SLOW_3, "none", SLOW_MORE, _UNEQUAL, SLOW_3, SLOW_5),
)
"""Class of job number i is CYCLE[i % 50]: 23 with a slow rank, 8 with nothing, 19 with another cause."""

LEAST_COST = 1.03
"""Least slowdown of a cause other than a slow rank: a fault that costs nothing cannot be found."""

_MOST_FACTOR = 500.0
_LARGE_SHARE = 0.04
_LARGE = ((16, 8, 8, 8), (128, 4, 2, 4), (1024, 1, 1, 4), (64, 2, 8, 4))
"""Replicas, stages, shards, microbatches: 1,024 ranks each."""
_SMALL = (
    *((8, 1, 1, 4), (16, 1, 1, 4), (32, 1, 1, 8), (64, 1, 1, 2), (128, 1, 1, 4), (4, 1, 4, 4), (16, 1, 8, 4)),
    *((4, 4, 1, 8), (8, 2, 1, 8), (4, 2, 2, 8), (8, 4, 1, 8), (4, 8, 1, 16), (8, 4, 4, 8), (16, 2, 2, 8)),
)
"""The same, 8 to 128 ranks. At least 4 replicas: of two peers, neither can be called the slow one."""


class Labelled(NamedTuple):
    """A job with the class it belongs to."""

    number: int
    label: str
    job: Job


def labelled(number: int, seed_base: int) -> Labelled:
    """Job `number` of the mixture; the same for the same seed base, whatever the others are."""
    random = np.random.default_rng([seed_base, number])
    label = CYCLE[number % len(CYCLE)]
    shape, steps = _shape(random, pipelined=label == _STAGE)
    job = Job(
        shape=shape,
        noise=Noise(sigma=random.uniform(0.02, 0.05)),
        fault=_fault(label, shape, steps, random),
        steps=steps,
        seed=int(random.integers(2**31)),
        with_work=bool(random.random() < 0.5),
    )
    return Labelled(number, label, job)


def run(job: Job) -> tuple[Job, SimulatedJob]:
    """Simulate the job. Other causes than a slow rank grow, up to 6 times, until they cost LEAST_COST."""
    done = simulate(job)
    if job.fault.cause is Cause.NONE or slow_compute(job.fault):
        return job, done
    for _ in range(6):
        if done.truth.active_slowdown >= LEAST_COST:
            break
        factor = 1.0 + 2.0 * (job.fault.factor - 1.0)
        most = 2.0 if job.fault.cause is Cause.UNEQUAL_BATCHES else _MOST_FACTOR
        job = replace(job, fault=replace(job.fault, factor=min(factor, most)))
        done = simulate(job)
    return job, done


def _shape(random: np.random.Generator, *, pipelined: bool) -> tuple[JobShape, int]:
    """The shape, and how many steps are seen."""
    large = random.random() < _LARGE_SHARE
    choice = [each for each in (_LARGE if large else _SMALL) if each[1] > 1 or not pipelined]
    replicas, stages, shards, microbatches = choice[random.integers(len(choice))]
    shape = JobShape(
        data_parallel=replicas, pipeline_parallel=stages, tensor_parallel=shards, microbatches=microbatches
    )
    return shape, 24 if large else 40


def _fault(label: str, shape: JobShape, steps: int, random: np.random.Generator) -> Fault:
    later = int(random.integers(steps // 4, steps // 2 - 1))
    """A first step in the second quarter."""
    begins = later if random.random() < 0.5 else 0
    if label in (SLOW_3, SLOW_5, SLOW_MORE):
        return _slow_rank(label, shape, begins, random)
    if label == _STAGE:
        stage = int(random.integers(shape.pipeline_parallel))
        return Fault(cause=Cause.SLOW_STAGE, stage=stage, factor=random.uniform(1.2, 1.6))
    if label == _UNEQUAL:
        return Fault(cause=Cause.UNEQUAL_BATCHES, factor=random.uniform(1.1, 1.7))
    if label == "network":
        return _network(shape, begins, later, random)
    if label == HOST_WORK:
        ranks = _node(shape, random) if random.random() < 0.5 else _some(shape, 1, random)
        return Fault(
            cause=Cause.SLOW_RANK,
            phase=_host_phase(shape, ranks),
            ranks=ranks,
            factor=random.uniform(8.0, 30.0),
            first_step=begins,
        )
    if label == "jitter":
        share, pause = random.uniform(0.05, 0.2), random.uniform(1.05, 1.3)
        return Fault(cause=Cause.JITTER, probability=share, factor=pause)
    return Fault()


def slow_compute(fault: Fault | Truth) -> bool:
    """True if ranks compute slowly: the cause whose ranks the methods must name."""
    return fault.cause is Cause.SLOW_RANK and fault.phase is SlowPhase.COMPUTE


def _host_phase(shape: JobShape, ranks: tuple[int, ...]) -> SlowPhase:
    """Data loading where all of the ranks load data, which the first and the last stage do."""
    ends = {0, shape.pipeline_parallel - 1}
    loads = {shape.place(rank)[0] for rank in ranks} <= ends
    return SlowPhase.DATA_LOADING if loads else SlowPhase.OTHER


def _slow_rank(label: str, shape: JobShape, begins: int, random: np.random.Generator) -> Fault:
    factor = {
        SLOW_3: 1.03,
        SLOW_5: random.uniform(1.05, 1.10),
        SLOW_MORE: 1.0 + 10 ** random.uniform(-1.0, 0.3),
    }[label]
    count = int(random.choice([1, 2, 3], p=[0.75, 0.15, 0.10]))
    # One slow rank in ten comes and goes.
    period = 10 if random.random() < 0.1 else None
    return Fault(
        cause=Cause.SLOW_RANK,
        ranks=_some(shape, min(count, max(1, shape.ranks // 8)), random),
        factor=factor,
        first_step=begins,
        period=period,
        active_share=0.6,
    )


def _network(shape: JobShape, begins: int, later: int, random: np.random.Generator) -> Fault:
    """The link of one rank where others can be compared with it, or from some step on the whole fabric."""
    if shape.pipeline_parallel * shape.tensor_parallel > 1 and random.random() < 0.5:
        ranks = _some(shape, 1, random)
        return Fault(cause=Cause.NETWORK, ranks=ranks, factor=random.uniform(2.0, 6.0), first_step=begins)
    return Fault(cause=Cause.NETWORK, factor=random.uniform(1.5, 4.0), first_step=later)


def _some(shape: JobShape, count: int, random: np.random.Generator) -> tuple[int, ...]:
    return tuple(sorted(int(rank) for rank in random.choice(shape.ranks, count, replace=False)))


def _node(shape: JobShape, random: np.random.Generator) -> tuple[int, ...]:
    """All ranks of a node, or one rank if the job has fewer than four nodes."""
    nodes = shape.ranks // RANKS_PER_NODE
    if nodes < 4:
        return _some(shape, 1, random)
    first = RANKS_PER_NODE * int(random.integers(nodes))
    return tuple(range(first, first + RANKS_PER_NODE))
