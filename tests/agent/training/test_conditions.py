"""Which runs look stuck: told by one collector, read by others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rankwatch.conventions import RankState
from rankwatch_agent.training.conditions import RankCondition, RunConditions


def condition(
    rank: int, last_progress: float, *, timeout: float | None = 10.0, state: RankState = RankState.RUNNING
) -> RankCondition:
    path = Path(f"/boxes/job/{rank}.blackbox")
    return RankCondition(rank, path, state, last_progress, timeout, open_phase=None, pid=1)


def test_a_rank_is_suspect_after_half_of_its_learnt_timeout() -> None:
    """Not at the half itself."""
    conditions = RunConditions()
    conditions.update({"job": [condition(0, 100.0), condition(1, 101.0)]}, 105.0)
    assert conditions.runs["job"].suspected_since is None
    conditions.update({"job": [condition(0, 100.0), condition(1, 101.0)]}, 105.5)
    assert [each.rank for each in conditions.runs["job"].suspects()] == [0]
    assert conditions.runs["job"].suspected_since == 105.5


def test_suspicion_keeps_its_beginning_and_ends_with_progress() -> None:
    """A second stall begins anew."""
    conditions = RunConditions()
    since = []
    for last, moment in ((100.0, 106.0), (100.0, 107.0), (107.5, 108.0), (107.5, 120.0)):
        conditions.update({"job": [condition(0, last)]}, moment)
        since.append(conditions.runs["job"].suspected_since)
    assert since == [106.0, 106.0, None, 120.0]


def test_a_lost_rank_makes_all_that_live_suspect() -> None:
    """They wait for it, though none is late yet."""
    conditions = RunConditions()
    lost = condition(2, 100.0, state=RankState.LOST)
    conditions.update({"job": [condition(1, 100.0), lost, condition(0, 100.0)]}, 101.0)
    run = conditions.runs["job"]
    assert [each.rank for each in run.suspects()] == [0, 1]
    assert [each.rank for each in run.lost] == [2]
    assert run.suspected_since == 101.0


def test_ranks_that_ended_and_ranks_without_history_are_not_suspect() -> None:
    """Nobody waits for the first, and nothing is known of the second."""
    conditions = RunConditions()
    ended = condition(0, 100.0, state=RankState.FINISHED)
    conditions.update({"job": [ended, condition(1, 100.0, timeout=None)]}, 1000.0)
    assert conditions.runs["job"].suspects() == ()
    assert ended.idle_seconds(1000.0) == 0.0


def test_a_run_that_was_forgotten_is_gone() -> None:
    """And a reader that still holds the old report is not disturbed."""
    conditions = RunConditions()
    conditions.update({"job": [condition(0, 100.0)]}, 101.0)
    held = conditions.runs
    conditions.update({}, 102.0)
    assert not conditions.runs
    assert replace(held["job"]) == held["job"]
