"""Who gathers in a collective, found by who waits for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.graph.replay import Replay
from support.diagnosis.operations import as_table

STEPS, STAGES, REPLICAS, SHARDS = 16, 2, 2, 2
ALONE = {
    "all": lambda stage, replica: 0,
    "stages": lambda stage, replica: stage,
    "replicas of a stage": lambda stage, replica: stage * REPLICAS + replica,
}
"""Which ranks gather, by a number for their gathering."""


@pytest.mark.parametrize("clocks", [0.0, 3.0])
@pytest.mark.parametrize(
    ("name", "gatherings"),
    [
        ("", "all"),
        ("", "stages"),
        ("", "replicas of a stage"),
        ("tp", "replicas of a stage"),
        ("world", "all"),
    ],
)
def test_members_are_those_that_leave_together(name: str, gatherings: str, clocks: float) -> None:
    """With no name of a group, or with one that stands for many, and whatever their clocks say."""
    alone = ALONE[gatherings]
    replay = Replay(as_table(_rows(name, alone, clocks)))
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
