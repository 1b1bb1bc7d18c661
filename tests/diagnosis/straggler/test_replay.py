"""The replay of a step's dependencies, on timelines small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.graph.replay import Replay, slowdown
from support.diagnosis.operations import SmallJob, as_table

C, X = Kind.COMPUTE, Kind.COMMUNICATION
NONE = float("nan")


def test_all_members_of_a_collective_go_on_when_the_last_has_come() -> None:
    """Its transfer is what the last arriver spends, and stays when the culprit is gone."""
    table = as_table(
        [
            (0, 0, "compute", C, 0.0, 1.0, 0, 0, 0, "", NONE),
            (0, 0, "all_reduce", X, 1.0, 2.5, 0, 0, 0, "dp", NONE),
            (0, 1, "compute", C, 0.0, 3.0, 0, 1, 0, "", NONE),
            (0, 1, "all_reduce", X, 3.0, 0.5, 0, 1, 0, "dp", NONE),
        ]
    )
    replay = Replay(table)
    assert replay.step_seconds(replay.measured).tolist() == [3.5]
    ideal = replay.measured.copy()
    ideal[2] = 1.0
    assert replay.step_seconds(ideal).tolist() == [1.5]


def test_a_receive_waits_for_its_send() -> None:
    """Across stages, matched by step, replica and microbatch."""
    table = as_table(
        [
            (0, 0, "forward", C, 0.0, 2.0, 0, 0, 0, "", NONE),
            (0, 0, "send", X, 2.0, 0.5, 0, 0, 0, "pp", NONE),
            (0, 1, "recv", X, 0.0, 2.5, 1, 0, 0, "pp", NONE),
            (0, 1, "forward", C, 2.5, 1.0, 1, 0, 0, "", NONE),
        ]
    )
    replay = Replay(table)
    assert replay.step_seconds(replay.measured).tolist() == [3.5]
    assert replay.step_seconds(np.where(np.arange(4) == 0, 1.0, replay.measured)).tolist() == [2.5]


def test_a_pause_of_the_rank_stays_a_pause() -> None:
    """It belongs to no operation, so no other duration takes it away."""
    table = as_table(
        [
            (0, 0, "forward", C, 0.0, 1.0, 0, 0, 0, "", NONE),
            (0, 0, "backward", C, 1.5, 1.0, 0, 0, 0, "", NONE),
        ]
    )
    replay = Replay(table)
    assert replay.step_seconds(replay.measured).tolist() == [2.5]


def test_an_operation_beside_another_is_not_chained_to_it() -> None:
    """A reduction that overlaps with compute takes no time of its own."""
    table = as_table(
        [
            (0, 0, "backward", C, 0.0, 1.0, 0, 0, 0, "", NONE),
            (0, 0, "all_reduce", X, 1.0, 1.0, 0, 0, 0, "dp", NONE),
            (0, 0, "backward", C, 1.0, 2.0, 0, 0, 1, "", NONE),
        ]
    )
    replay = Replay(table)
    assert replay.step_seconds(replay.measured).tolist() == [3.0]


@pytest.mark.parametrize("messages", [True, False])
def test_a_whole_pipeline_takes_as_long_in_the_replay_as_it_took(messages: bool) -> None:
    """Each step from a common start."""
    job = SmallJob(dp=3, pp=4, steps=1, with_messages=messages)
    table = job.table()
    replay = Replay(table)
    took = (table.start_seconds + table.duration_seconds).max() - table.start_seconds.min()
    assert replay.step_seconds(replay.measured)[0] == pytest.approx(took, rel=0.01)


def test_dependencies_in_a_circle_end() -> None:
    """Two ranks enter two collectives in different order: replayed as far as can be."""
    rows = []
    for rank, groups in ((0, "ab"), (1, "ba")):
        for place, group in enumerate(groups):
            rows.append((0, rank, "all_reduce", X, float(place), 1.0, 0, 0, 0, group, NONE))
    replay = Replay(as_table(rows))
    assert np.isfinite(replay.step_seconds(replay.measured)).all()


def test_nothing_to_gain_is_a_slowdown_of_one() -> None:
    """Never below, and not for an empty run."""
    assert slowdown(np.array([1.0]), np.array([2.0])) == 1.0
    assert slowdown(np.array([0.0]), np.array([0.0])) == 1.0
