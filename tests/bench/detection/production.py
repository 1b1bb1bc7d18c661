"""Jobs as in production: what their tables have, and faults below, at and above what can be found.

Each job comes from its own seed, as in the mixture of clean jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.simulation.job import REAL_RECORDER, Job
from bench.simulation.program import Barrier, JobShape, Megatron
from bench.simulation.recorder import Recorder
from bench.simulation.workload import Fault, Noise, production_workload
from rankwatch.conventions.states import Cause, SlowPhase

NONE, RANK, STAGE, STALL = "none", "slow rank", "slow stage", "unrecorded stall"
PART = "slow rank in less than half of the steps"
TWO_RANKS, RANK_AND_STAGE, THREE = "two slow ranks", "slow rank and stage", "slow rank, stage and stall"
UNEQUAL, LINK, JITTER = "unequal batches", "slow link", "jitter"
HOST, LOADING, FABRIC = "host work of a rank", "data loading of a rank", "slow fabric"
SHORT, HUGE, LOSS = "slow rank, up to 3 steps", "rank at half speed or less", "loss on the last stage"
_OFTEN = (
    *(NONE, RANK, STAGE, PART, RANK, TWO_RANKS, STALL, UNEQUAL, RANK_AND_STAGE, RANK),
    *(NONE, STAGE, RANK, PART, LINK, TWO_RANKS, STALL, RANK, THREE, NONE),
    *(RANK, STAGE, PART, JITTER, RANK_AND_STAGE, STALL, RANK, NONE, STAGE, RANK),
)
_SELDOM = (
    *(HOST, SHORT, LOADING, HUGE, FABRIC, NONE, LOSS, SHORT),
    *(HOST, FABRIC, LOADING, HUGE, SHORT, LOSS, NONE),
)
CYCLE = (*_OFTEN, *_OFTEN, *_SELDOM)
"""Class of job number i is CYCLE[i % 75]."""

CHIP_SIGMAS = (0.004, 0.01, 0.02, 0.03)
SHAPES = (
    *((4, 4, 4, 16), (2, 4, 1, 8), (8, 4, 2, 8), (4, 8, 2, 16), (8, 2, 4, 8), (16, 1, 8, 4), (32, 1, 1, 4)),
    *((4, 4, 1, 32), (16, 2, 1, 8), (8, 1, 1, 8), (2, 8, 4, 16), (6, 3, 1, 12)),
)
"""Replicas, stages, shards, microbatches: 8 to 128 ranks, of which 8 to 32 are recorded."""
_LEAST_REPEATS = 8
"""Microbatches of which one step is enough to see a slow rank."""
_BARRIERS = (
    (),
    (Barrier.LAST_STAGE,),
    (Barrier.LAST_STAGE, Barrier.FIRST_REPLICA),
    (Barrier.LAST_STAGE, Barrier.REPLICA),
    tuple(Barrier),
)


class ProductionJob(NamedTuple):
    """A job with the class that it belongs to."""

    number: int
    label: str
    job: Job


def production_job(number: int, seed_base: int) -> ProductionJob:
    """Job `number`; the same for the same seed base, whatever the others are."""
    random = np.random.default_rng([seed_base, number, 11])
    label = CYCLE[number % len(CYCLE)]
    chip_sigma = CHIP_SIGMAS[int(random.integers(len(CHIP_SIGMAS)))]
    job = healthy(random, chip_sigma, [each for each in SHAPES if _fits(label, each)])
    if label == SHORT:
        job = replace(job, steps=1 + number % 3)
    fault, *others = _faults(label, job.shape, job.steps, random)
    return ProductionJob(number, label, replace(job, fault=fault, more_faults=tuple(others)))


def _fits(label: str, shape: tuple[int, int, int, int]) -> bool:
    """A slow link inside a tensor-parallel group lies in the rows of compute, so such groups have none."""
    _, stages, shards, microbatches = shape
    if label in (LINK, FABRIC) and shards > 1:
        return False
    if label == SHORT and microbatches < _LEAST_REPEATS:
        return False
    return stages > 1 or label not in (STAGE, RANK_AND_STAGE, THREE, LINK, LOSS)


def healthy(
    random: np.random.Generator, chip_sigma: float, shapes: Sequence[tuple[int, int, int, int]] = SHAPES
) -> Job:
    """A job without a fault, of any shape, habit and recorder."""
    replicas, stages, shards, microbatches = shapes[int(random.integers(len(shapes)))]
    workload = production_workload(float(np.exp(random.uniform(np.log(0.03), np.log(0.4)))))
    return Job(
        shape=JobShape(
            data_parallel=replicas,
            pipeline_parallel=stages,
            tensor_parallel=shards,
            microbatches=microbatches,
        ),
        workload=replace(workload, last_stage_extra=random.uniform(0.0, 0.1)),
        noise=Noise(
            sigma=random.uniform(0.01, 0.03),
            rank_sigma=chip_sigma,
            drift_sigma=random.uniform(0.001, 0.006),
            outlier_probability=0.01,
            clock_sigma_seconds=float(random.choice([0.0, 0.0001, 0.003])),
        ),
        megatron=Megatron(barriers=_BARRIERS[int(random.integers(len(_BARRIERS)))]),
        recorder=_recorder(random),
        steps=int(random.integers(10, 41)),
        seed=int(random.integers(2**31)),
    )


def _recorder(random: np.random.Generator) -> Recorder:
    """One table in seven lacks sends, receives or groups."""
    recorder = replace(
        REAL_RECORDER,
        fuzz_seconds=random.uniform(0.000_003, 0.000_023),
        launch_seconds=random.uniform(0.000_003, 0.000_02),
    )
    lacks = ("sends", "receives", "groups")[int(random.integers(3))]
    return replace(recorder, **{lacks: False}) if random.random() < 1 / 7 else recorder


def _faults(label: str, shape: JobShape, steps: int, random: np.random.Generator) -> list[Fault]:
    ranks = [int(rank) for rank in random.permutation(shape.ranks // shape.tensor_parallel)]
    first, second = (rank * shape.tensor_parallel for rank in ranks[:2])
    if label in _SELDOM_FAULTS:
        return [_SELDOM_FAULTS[label](first, shape, steps, random)]
    single = {
        NONE: Fault(),
        RANK: _slow(first, random, least=0.005),
        PART: _in_part(_slow(first, random, least=0.05), steps, random),
        STALL: _stalled(first, random),
        STAGE: _heavy(shape, random, least=0.03),
        UNEQUAL: Fault(cause=Cause.UNEQUAL_BATCHES, factor=random.uniform(1.1, 1.7)),
        LINK: Fault(cause=Cause.NETWORK, ranks=(first,), factor=random.uniform(20.0, 60.0)),
        JITTER: Fault(
            cause=Cause.JITTER, probability=random.uniform(0.05, 0.2), factor=random.uniform(1.1, 1.3)
        ),
    }
    several = {
        TWO_RANKS: [_slow(first, random, least=0.08), _slow(second, random, least=0.08)],
        RANK_AND_STAGE: [_slow(first, random, least=0.08), _heavy(shape, random, least=0.2)],
        THREE: [_slow(first, random, least=0.08), _heavy(shape, random, least=0.2), _stalled(second, random)],
    }
    return several[label] if label in several else [single[label]]


def _slow(rank: int, random: np.random.Generator, *, least: float) -> Fault:
    """From `least` to twice as slow."""
    return Fault(cause=Cause.SLOW_RANK, ranks=(rank,), factor=1.0 + _between(least, 1.0, random))


def _heavy(shape: JobShape, random: np.random.Generator, *, least: float) -> Fault:
    stage = int(random.integers(shape.pipeline_parallel))
    return Fault(cause=Cause.SLOW_STAGE, stage=stage, factor=1.0 + _between(least, 0.8, random))


def _stalled(rank: int, random: np.random.Generator) -> Fault:
    """Held up by 1 to 30 % of its compute in each step."""
    return Fault(
        cause=Cause.SLOW_RANK,
        phase=SlowPhase.OTHER,
        ranks=(rank,),
        factor=1.0 + _between(0.01, 0.3, random),
        unrecorded=True,
    )


def _held_up(phase: SlowPhase, rank: int, random: np.random.Generator) -> Fault:
    """Where nothing is recorded, a pause that healthy ranks have, too, lasts 3 to 20 times as long."""
    return Fault(cause=Cause.SLOW_RANK, phase=phase, ranks=(rank,), factor=_between(3.0, 20.0, random))


def _slow_fabric(steps: int, random: np.random.Generator) -> Fault:
    """All links, from a step in the second quarter on."""
    first_step = int(random.integers(steps // 4, steps // 2))
    return Fault(cause=Cause.NETWORK, factor=random.uniform(2.0, 6.0), first_step=first_step)


_SELDOM_FAULTS: Mapping[str, Callable[[int, JobShape, int, np.random.Generator], Fault]] = MappingProxyType(
    {
        HOST: lambda rank, shape, steps, random: _held_up(SlowPhase.OTHER, rank, random),
        LOADING: lambda rank, shape, steps, random: _held_up(SlowPhase.DATA_LOADING, rank, random),
        FABRIC: lambda rank, shape, steps, random: _slow_fabric(steps, random),
        SHORT: lambda rank, shape, steps, random: _slow(rank, random, least=0.2),
        HUGE: lambda rank, shape, steps, random: Fault(
            cause=Cause.SLOW_RANK, ranks=(rank,), factor=random.uniform(2.0, 3.0)
        ),
        LOSS: lambda rank, shape, steps, random: Fault(
            cause=Cause.SLOW_STAGE, stage=shape.pipeline_parallel - 1, factor=random.uniform(1.3, 1.8)
        ),
    }
)


def _in_part(fault: Fault, steps: int, random: np.random.Generator) -> Fault:
    """In 15 to 45 % of the steps: in a row, or here and there."""
    share = random.uniform(0.15, 0.45)
    if random.random() < 0.5:
        return replace(fault, share_of_steps=share)
    duration = max(4, round(share * steps))
    return replace(fault, first_step=int(random.integers(0, steps - duration + 1)), duration=duration)


def _between(least: float, most: float, random: np.random.Generator) -> float:
    """Evenly on a logarithmic scale: small faults are as frequent as large ones."""
    return float(np.exp(random.uniform(np.log(least), np.log(most))))
