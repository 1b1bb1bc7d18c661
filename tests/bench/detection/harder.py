"""Jobs that are harder to diagnose than those of the mixture: two causes at once, or too few operations.

They have no target. On them the engine should abstain rather than name a wrong rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.simulation.job import Job, setting_of, simulate
from bench.simulation.program import RANKS_PER_NODE, JobShape
from bench.simulation.recorder import OperationRows
from bench.simulation.timeline import difficulty, durations, run_program
from bench.simulation.workload import CONTEXT_TOKENS, Fault, Noise
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.engine import diagnose

from ..result import Row
from .mixture import labelled, run

Floats = NDArray[np.float64]

ABSTAINED = (Cause.INCONCLUSIVE, Cause.NONE)
SHORT_STEPS = 5
_EVERY = 4
_SHAPES = ((8, 1, 1, 4), (32, 1, 1, 8), (16, 1, 8, 4), (4, 4, 1, 8), (8, 2, 1, 8), (8, 4, 4, 8))
"""Replicas, stages, shards, microbatches, for two causes at once."""
_PAIRS = ((2, 1, 1, 8), (2, 2, 1, 8), (2, 4, 1, 8), (2, 2, 4, 4))


class HardJob(NamedTuple):
    """A table, and its right verdicts."""

    table: OperationTable
    causes: tuple[Cause, ...]
    """Right causes: any of them."""
    ranks: tuple[int, ...]
    """Ranks that may be named."""


class Answer(NamedTuple):
    """The scored verdict on one job."""

    scenario: str
    number: int
    cause: str
    ranks: tuple[int, ...]
    right: bool
    abstained: bool
    wrong_rank: bool


_PHASES = (None, SlowPhase.COMPUTE)
"""Phases of a right verdict: in these jobs slow ranks compute slowly."""


def attempt_harder(scenario: str, number: int, seed_base: int) -> Answer:
    """Make job `number` of a scenario and diagnose it."""
    job = SCENARIOS[scenario](number, seed_base)
    verdict = diagnose(job.table)
    wrong_rank = not set(verdict.ranks) <= set(job.ranks)
    return Answer(
        scenario=scenario,
        number=number,
        cause=str(verdict.cause),
        ranks=verdict.ranks,
        right=verdict.cause in job.causes and verdict.phase in _PHASES and not wrong_rank,
        abstained=verdict.cause in ABSTAINED and verdict.cause not in job.causes,
        wrong_rank=wrong_rank,
    )


def harder_rows(answers: Sequence[Answer]) -> tuple[Row, ...]:
    """One row for each scenario; none has a target."""
    return tuple(_row(name, [each for each in answers if each.scenario == name]) for name in SCENARIOS)


def _row(name: str, answers: Sequence[Answer]) -> Row:
    right, abstained, wrong_rank = (
        sum(getattr(each, what) for each in answers) for what in ("right", "abstained", "wrong_rank")
    )
    other = len(answers) - right - abstained - wrong_rank
    return Row(
        f"harder: {name}",
        f"a wrong rank named in {wrong_rank} of {len(answers)}",
        f"right {right}, abstained {abstained}, a wrong cause and no rank {other}",
    )


def _one_node(number: int, seed_base: int) -> HardJob:
    random = np.random.default_rng([seed_base, number, 1])
    job = labelled(number, seed_base).job
    nodes = max(1, job.shape.ranks // RANKS_PER_NODE)
    node = int(random.integers(nodes))
    return _part_of(job, lambda table: table.rank // RANKS_PER_NODE == node)


def _every_fourth(number: int, seed_base: int) -> HardJob:
    return _part_of(labelled(number, seed_base).job, lambda table: table.rank % _EVERY == number % _EVERY)


def _short(number: int, seed_base: int) -> HardJob:
    job = labelled(number, seed_base).job
    job = replace(job, fault=replace(job.fault, first_step=0, period=None))
    return _part_of(job, lambda table: table.step < SHORT_STEPS)


def _part_of(job: Job, held: Callable[[OperationTable], NDArray[np.bool_]]) -> HardJob:
    _, done = run(job)
    table = done.table.take(held(done.table))
    ranks = tuple(sorted(set(done.truth.ranks) & set(np.unique(table.rank).tolist())))
    gone = done.truth.ranks and not ranks
    return HardJob(table, (Cause.NONE,) if gone else (done.truth.cause,), ranks)


def _with_uneven_batches(number: int, seed_base: int) -> HardJob:
    random = np.random.default_rng([seed_base, number, 2])
    other = Fault(cause=Cause.UNEQUAL_BATCHES, factor=random.uniform(1.2, 1.6))
    return _two_causes(_SHAPES[number % len(_SHAPES)], other, random)


def _with_jitter(number: int, seed_base: int) -> HardJob:
    random = np.random.default_rng([seed_base, number, 3])
    pauses = Fault(cause=Cause.JITTER, probability=random.uniform(0.05, 0.2), factor=random.uniform(1.1, 1.3))
    return _two_causes(_SHAPES[number % len(_SHAPES)], pauses, random)


def _confounded(number: int, seed_base: int) -> HardJob:
    random = np.random.default_rng([seed_base, number, 4])
    other = Fault(cause=Cause.UNEQUAL_BATCHES, factor=random.uniform(1.2, 1.6))
    return _two_causes((8, 1, 1, 4), other, random, with_work=False)


def _two_replicas(number: int, seed_base: int) -> HardJob:
    random = np.random.default_rng([seed_base, number, 5])
    shape = _shape(_PAIRS[number % len(_PAIRS)])
    rank = int(random.integers(shape.ranks))
    fault = Fault(
        cause=Cause.SLOW_RANK,
        ranks=(rank,),
        factor=random.uniform(1.1, 1.5),
        first_step=int(random.choice([0, 15])),
    )
    job = Job(shape=shape, fault=fault, noise=_noise(random), seed=int(random.integers(2**31)))
    return HardJob(simulate(job).table, (Cause.SLOW_RANK,), (rank,))


def _two_causes(
    size: tuple[int, int, int, int],
    other: Fault,
    random: np.random.Generator,
    *,
    with_work: bool | None = None,
) -> HardJob:
    """A rank that is 10 to 50 % slower, and another cause in the same run. Either is right."""
    shape = _shape(size)
    rank = int(random.integers(shape.ranks))
    slow = Fault(cause=Cause.SLOW_RANK, ranks=(rank,), factor=random.uniform(1.1, 1.5))
    job = Job(shape=shape, fault=other, noise=_noise(random), seed=int(random.integers(2**31)))
    setting = setting_of(job)
    healthy, one, two = (durations(setting, fault) for fault in (Fault(), slow, other))
    both = tuple(map(_together, one, two, healthy))
    timeline = run_program(shape, setting.program, both)
    has_work = bool(random.random() < 0.5) if with_work is None else with_work
    rows = OperationRows(shape, setting.program, np.arange(job.steps))
    work = CONTEXT_TOKENS * difficulty(setting, other) if has_work else None
    table = rows.table(timeline, setting.draws.clock_offset_seconds, work)
    return HardJob(table, (Cause.SLOW_RANK, other.cause), (rank,))


def _together(one: Floats, two: Floats, healthy: Floats) -> Floats:
    """Multiply the slowdowns of both faults. An operation without a duration (a receive) keeps none."""
    return one * np.divide(two, healthy, out=np.ones_like(two), where=healthy > 0.0)


def _shape(size: tuple[int, int, int, int]) -> JobShape:
    replicas, stages, shards, microbatches = size
    return JobShape(
        data_parallel=replicas, pipeline_parallel=stages, tensor_parallel=shards, microbatches=microbatches
    )


def _noise(random: np.random.Generator) -> Noise:
    return Noise(sigma=random.uniform(0.02, 0.05))


SCENARIOS: Mapping[str, Callable[[int, int], HardJob]] = MappingProxyType(
    {
        "ranks of one node": _one_node,
        "every fourth rank": _every_fourth,
        "5 steps": _short,
        "2 replicas, a slow rank": _two_replicas,
        "slow rank and unequal microbatches": _with_uneven_batches,
        "the same, 8 ranks, 1 stage, no work units": _confounded,
        "slow rank and jitter": _with_jitter,
    }
)
