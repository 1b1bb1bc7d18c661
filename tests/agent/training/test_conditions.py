"""Which runs look stuck: told by one collector, read by others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch.conventions.states import RankState
from rankwatch_agent.training.conditions import Lifetime, RankCondition, RunConditions, in_present_attempt


def condition(
    rank: int, last_progress: float, *, timeout: float | None = 10.0, state: RankState = RankState.RUNNING
) -> RankCondition:
    path = Path(f"/boxes/job/{rank}.blackbox")
    return RankCondition(rank, path, state, last_progress, timeout, open_phase=None, pid=1)


def test_suspect_after_half_timeout() -> None:
    """A rank is suspect after half of its learnt timeout. Not at the half itself."""
    conditions = RunConditions()
    conditions.update({"job": [condition(0, 100.0), condition(1, 101.0)]}, 105.0)
    assert conditions.runs["job"].suspected_since is None
    conditions.update({"job": [condition(0, 100.0), condition(1, 101.0)]}, 105.5)
    assert [each.rank for each in conditions.runs["job"].suspects()] == [0]
    assert conditions.runs["job"].suspected_since == 105.5


def test_suspicion_begins_and_ends() -> None:
    """Suspicion keeps its beginning and ends with progress. A second stall begins anew."""
    conditions = RunConditions()
    since = []
    for last, moment in ((100.0, 106.0), (100.0, 107.0), (107.5, 108.0), (107.5, 120.0)):
        conditions.update({"job": [condition(0, last)]}, moment)
        since.append(conditions.runs["job"].suspected_since)
    assert since == [106.0, 106.0, None, 120.0]


def test_lost_rank_makes_run_suspect() -> None:
    """A lost rank makes all that live suspect. They wait for it, though none is late yet."""
    conditions = RunConditions()
    lost = condition(2, 100.0, state=RankState.LOST)
    conditions.update({"job": [condition(1, 100.0), lost, condition(0, 100.0)]}, 101.0)
    run = conditions.runs["job"]
    assert [each.rank for each in run.suspects()] == [0, 1]
    assert [each.rank for each in run.lost] == [2]
    assert run.suspected_since == 101.0


def test_doubtful() -> None:
    """Late ranks, and those of which nothing is known; all where one is lost; none that ended well."""
    conditions = RunConditions()
    ended = condition(3, 90.0, state=RankState.FINISHED)
    ranks = [condition(0, 100.0), condition(1, 104.0), condition(2, 104.0, timeout=None), ended]
    conditions.update({"job": ranks}, 106.0)
    assert {int(each.stem) for each in conditions.runs["job"].doubtful()} == {0, 2}
    conditions.update({"job": [*ranks, condition(4, 100.0, state=RankState.LOST)]}, 106.0)
    assert {int(each.stem) for each in conditions.runs["job"].doubtful()} == {0, 1, 2, 3, 4}


def test_never_suspect() -> None:
    """Nobody waits for ranks that ended, and nothing is known of those without history."""
    conditions = RunConditions()
    ended = condition(0, 100.0, state=RankState.FINISHED)
    conditions.update({"job": [ended, condition(1, 100.0, timeout=None)]}, 1000.0)
    assert conditions.runs["job"].suspects() == ()
    assert ended.idle_seconds(1000.0) == 0.0


def test_forgotten_run() -> None:
    """A run that was forgotten is gone. And a reader that still holds the old report is not disturbed."""
    conditions = RunConditions()
    conditions.update({"job": [condition(0, 100.0)]}, 101.0)
    held = conditions.runs
    conditions.update({}, 102.0)
    assert not conditions.runs
    assert replace(held["job"]) == held["job"]


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        (Lifetime(0.0, 50.0, ended=True, took_part=True), False),
        (Lifetime(0.0, 50.0, ended=True, took_part=False), True),
        (Lifetime(0.0, 150.0, ended=True, took_part=True), True),
        (Lifetime(-2000.0, -1990.0, ended=True, took_part=False), False),
        (Lifetime(0.0, 50.0, ended=False, took_part=True), True),
    ],
    ids=["took part", "died on the way", "ended later", "long before", "alive"],
)
def test_present_attempt(lost: Lifetime, kept: bool) -> None:
    """Ranks left behind had met others before the present ones started, or began too long ago to wait for."""
    present = Lifetime(100.0, 300.0, ended=False, took_part=True)
    assert in_present_attempt([lost, present]) == [kept, True]


def test_attempt_without_living_ranks() -> None:
    """Nothing shows which of the dead belong together."""
    dead = [Lifetime(start, start + 1.0, ended=True, took_part=True) for start in (0.0, 9000.0)]
    assert in_present_attempt(dead) == [True, True]
