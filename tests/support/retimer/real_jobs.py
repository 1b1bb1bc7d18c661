"""The operation tables of real jobs, and what they would have recorded without the fault that is known.

Beside them simulated jobs of other shapes, for machines without these and against fitting. The simulator
writes a healthy table with what production tables have. All else is the re-timer's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

import numpy as np

from bench.simulation.job import Job, Level, at_level, simulate
from bench.simulation.program import JobShape
from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.reading import read_operations
from support.paths import RECORDED
from support.retimer.faults import AsRecorded
from support.retimer.job import Base, base_of
from support.retimer.replay import Replay, Seconds

TABLES = RECORDED / "operation_tables"
ABSENT = f"no operation tables of real jobs in {TABLES}"
JOBS = ("job-a", "job-b")

KNOWN: Mapping[str, AsRecorded] = MappingProxyType(
    {
        "job-a": AsRecorded(cause=Cause.SLOW_RANK, slow_ranks=(0,)),
        "job-b": AsRecorded(cause=Cause.SLOW_STAGE, slow_stage=3),
    }
)
"""What is true of each job."""

_ALIKE = 0.02
"""Ranks that compute within this of the others keep their own speed."""
_LONG_SECONDS = 5e-3


@cache
def real(name: str) -> Base:
    """The job as it was recorded."""
    return base_of(read_operations(TABLES / f"{name}.csv.gz").table)


@cache
def healthy(name: str) -> Base:
    """The same job without slow ranks and heavy stages, and with transfers and pauses of the usual length."""
    job = real(name)
    seconds = job.seconds.copy()
    _level_ranks(job.replay, seconds, range(1 << 30))
    _level_long_times(job.replay, seconds)
    return Base(table=job.table, replay=job.replay, seconds=seconds)


@cache
def repaired(name: str) -> Base:
    """The same job without the fault that is known, and with everything else as it was recorded."""
    job = real(name)
    seconds = job.seconds.copy()
    _level_ranks(job.replay, seconds, KNOWN[name].slow(job.replay))
    return Base(table=job.table, replay=job.replay, seconds=seconds)


def rank_speeds(replay: Replay, seconds: Seconds) -> Iterator[tuple[list[int], float]]:
    """Nodes of each rank and operation, and their median over that of all ranks."""
    medians: dict[str, dict[int, float]] = defaultdict(dict)
    nodes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, node in enumerate(replay.program.nodes):
        if replay.own_work(index):
            nodes[node.names[0], node.rank].append(index)
    for (name, rank), of_rank in nodes.items():
        medians[name][rank] = float(np.median(seconds.work[of_rank]))
    for (name, rank), of_rank in nodes.items():
        yield of_rank, medians[name][rank] / float(np.median(list(medians[name].values())))


def _level_ranks(replay: Replay, seconds: Seconds, ranks: Container[int]) -> None:
    for nodes, ratio in list(rank_speeds(replay, seconds)):
        if replay.program.nodes[nodes[0]].rank in ranks and abs(ratio - 1.0) > _ALIKE:
            seconds.work[nodes] /= ratio


def _level_long_times(replay: Replay, seconds: Seconds) -> None:
    """A pause or a transfer far longer than that of the same place on most ranks and steps becomes usual.

    The transfers of the slow rank's groups are among these: they take as much longer as its computation.
    """
    places: dict[tuple[tuple[str, ...], int], list[int]] = defaultdict(list)
    seen: dict[tuple[int, tuple[str, ...]], int] = defaultdict(int)
    for index, node in enumerate(replay.program.nodes):
        occurrence = seen[node.rank, node.names]
        seen[node.rank, node.names] += 1
        places[node.names, occurrence].append(index)
    for nodes in places.values():
        _make_usual(seconds.pause, [node for node in nodes if replay.before[node] >= 0])
        _make_usual(seconds.work, [node for node in nodes if replay.meets[node]])


def _make_usual(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], nodes: list[int]) -> None:
    if not nodes:
        return
    chosen = values[nodes]
    usual = np.median(chosen)
    values[nodes] = np.where(chosen > max(1.5 * usual, usual + _LONG_SECONDS), usual, chosen)


SHAPES = MappingProxyType(
    {
        "wide": JobShape(data_parallel=32, pipeline_parallel=2, microbatches=8),
        "flat": JobShape(data_parallel=16, microbatches=6),
    }
)
_SIMULATED_STEPS = 24


@cache
def simulated(name: str) -> Base:
    """A healthy job: its stages are equal, its chips hardly differ, and no operation is delayed."""
    job = at_level(Job(shape=SHAPES[name], steps=_SIMULATED_STEPS, seed=8), Level.REAL)
    quiet = replace(job.noise, sigma=0.01, rank_sigma=0.003, outlier_probability=0.0)
    equal = replace(job.workload, first_stage_extra=0.0, last_stage_extra=0.0)
    return base_of(simulate(replace(job, noise=quiet, workload=equal)).table)
