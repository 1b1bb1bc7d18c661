"""The replay of a step's dependencies on timelines worked out by hand, and members inferred from times."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.graph.replay import Replay, slowdown
from support.diagnosis.operations import SmallJob, as_table

C, X = Kind.COMPUTE, Kind.COMMUNICATION
NONE = float("nan")


def replay_of(*rows: tuple[Any, ...]) -> Replay:
    """Of rows of step 0: rank, operation, kind, start, seconds, stage, replica, microbatch, group."""
    return Replay(as_table([(0, *row, NONE) for row in rows]))


def step_seconds(replay: Replay, changed: Mapping[int, float] = MappingProxyType({})) -> float:
    """Of the step, with other seconds of some rows."""
    seconds = replay.measured.copy()
    for row, value in changed.items():
        seconds[row] = value
    return float(replay.step_seconds(seconds)[0])


def test_collective() -> None:
    """Its transfer is what the last arriver spends, and stays when that rank is faster."""
    replay = replay_of(
        (0, "compute", C, 0.0, 1.0, 0, 0, 0, ""),
        (0, "all_reduce", X, 1.0, 2.5, 0, 0, 0, "dp"),
        (1, "compute", C, 0.0, 3.0, 0, 1, 0, ""),
        (1, "all_reduce", X, 3.0, 0.5, 0, 1, 0, "dp"),
    )
    assert (step_seconds(replay), step_seconds(replay, {2: 1.0})) == (3.5, 1.5)


def test_receive() -> None:
    """Across stages, matched by step, replica and microbatch."""
    replay = replay_of(
        (0, "forward", C, 0.0, 2.0, 0, 0, 0, ""),
        (0, "send", X, 2.0, 0.5, 0, 0, 0, "pp"),
        (1, "recv", X, 0.0, 2.5, 1, 0, 0, "pp"),
        (1, "forward", C, 2.5, 1.0, 1, 0, 0, ""),
    )
    assert (step_seconds(replay), step_seconds(replay, {0: 1.0})) == (3.5, 2.5)


def test_pipeline_without_messages() -> None:
    """A forward pass waits for that of the stage before, and a backward pass for that of the stage behind."""
    replay = replay_of(
        (0, "forward", C, 0.0, 2.0, 0, 0, 0, ""),
        (0, "backward", C, 4.5, 1.5, 0, 0, 0, ""),
        (1, "forward", C, 2.0, 1.0, 1, 0, 0, ""),
        (1, "backward", C, 3.0, 1.5, 1, 0, 0, ""),
    )
    assert replay.communication.waits_for.tolist() == [-1, 3, 0, -1]
    assert [step_seconds(replay, each) for each in ({}, {0: 1.0}, {3: 1.0})] == [6.0, 5.0, 5.5]


def test_pause() -> None:
    """It belongs to no operation, so no other duration takes it away."""
    replay = replay_of((0, "forward", C, 0.0, 1.0, 0, 0, 0, ""), (0, "backward", C, 1.5, 1.0, 0, 0, 0, ""))
    assert step_seconds(replay) == 2.5


def test_overlap() -> None:
    """A reduction that overlaps with compute takes no time of its own."""
    replay = replay_of(
        (0, "backward", C, 0.0, 1.0, 0, 0, 0, ""),
        (0, "all_reduce", X, 1.0, 1.0, 0, 0, 0, "dp"),
        (0, "backward", C, 1.0, 2.0, 0, 0, 1, ""),
    )
    assert step_seconds(replay) == 3.0


@pytest.mark.parametrize("messages", [True, False])
def test_pipeline(messages: bool) -> None:
    """A step takes as long in the replay as it took."""
    job = SmallJob(dp=3, pp=4, steps=1, with_messages=messages)
    table = job.table()
    replay = Replay(table)
    took = (table.start_seconds + table.duration_seconds).max() - table.start_seconds.min()
    assert replay.step_seconds(replay.measured)[0] == pytest.approx(took, rel=0.01)


def test_cyclic_dependencies() -> None:
    """Two ranks enter two collectives in different order: replayed as far as possible."""
    rows = []
    for rank, groups in ((0, "ab"), (1, "ba")):
        for place, group in enumerate(groups):
            rows.append((0, rank, "all_reduce", X, float(place), 1.0, 0, 0, 0, group, NONE))
    replay = Replay(as_table(rows))
    assert np.isfinite(replay.step_seconds(replay.measured)).all()


def test_slowdown() -> None:
    """It is never below 1, and 1 for an empty run."""
    assert slowdown(np.array([1.0]), np.array([2.0])) == 1.0
    assert slowdown(np.array([0.0]), np.array([0.0])) == 1.0


STEPS, STAGES, REPLICAS, SHARDS = 16, 2, 2, 2
ALONE = {
    "all": lambda stage, replica: 0,
    "stages": lambda stage, replica: stage,
    "replicas of a stage": lambda stage, replica: stage * REPLICAS + replica,
}
"""Which ranks gather, by a number for their gathering."""


@pytest.mark.parametrize("clocks", [0.0, 3.0])
@pytest.mark.parametrize("gatherings", ALONE)
@pytest.mark.parametrize("named", [False, True])
def test_members(named: bool, gatherings: str, clocks: float) -> None:
    """Members leave together, whatever their clocks are: without group names, or with one for many groups."""
    alone = ALONE[gatherings]
    replay = Replay(as_table(_rows("group" if named else "", alone, clocks)))
    assert replay.communication.collectives == STEPS * len(
        {alone(s, r) for s in range(STAGES) for r in range(REPLICAS)}
    )


def _rows(name: str, alone: Any, clocks: float) -> list[tuple[Any, ...]]:
    random = np.random.default_rng(0)
    offset = random.uniform(-clocks, clocks, STAGES * REPLICAS * SHARDS)
    rows: list[tuple[Any, ...]] = []
    for step in range(STEPS):
        came = {
            (stage, replica, shard): random.uniform(1.0, 2.0)
            for stage in range(STAGES)
            for replica in range(REPLICAS)
            for shard in range(SHARDS)
        }
        for rank, ((stage, replica, _), seconds) in enumerate(came.items()):
            last = max(each for (s, r, _), each in came.items() if alone(s, r) == alone(stage, replica))
            start = 10.0 * step + offset[rank]
            place = (stage, replica, 0)
            rows.append((step, rank, "forward", Kind.COMPUTE, start, seconds, *place, "", np.nan))
            wait = (start + seconds, last - seconds + random.uniform(0.1, 0.11))
            rows.append((step, rank, "all_reduce", Kind.COMMUNICATION, *wait, *place, name, np.nan))
    return rows
