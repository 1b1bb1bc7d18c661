"""The collectives of one rank: how far it has come, and what its labels are."""

from __future__ import annotations

import itertools
import math

import pytest

from rankwatch.blackbox import layout
from rankwatch_agent.training.collectives.totals import (
    MOST_PENDING_OF_RANK,
    GroupKey,
    Position,
    totals_series,
)
from support.training.collectives import (
    TENSOR,
    WORLD,
    collectives_and_steps,
    complete,
    group_now,
    rank_collectives,
)


def test_totals_by_group_and_operation() -> None:
    """The number of the group in a record names its row in the table, which tells its members."""
    rank = rank_collectives(group_now(WORLD, "0-3", 4), group_now(TENSOR, "0-1", 2))
    complete(rank, 0, 0.5, size=100)
    complete(rank, 1, 0.25, size=50)
    complete(rank, 0, 1.0, group=TENSOR, operation=2)
    assert {at: (each.count, each.bytes, each.seconds) for at, each in rank.totals.items()} == {
        ("default_pg", "0-3", "all_reduce"): (2, 150, 0.75),
        ("mesh_tp", "0-1", "all_gather"): (1, 1 << 20, 1.0),
    }


def test_new_group_has_its_members() -> None:
    """The table is looked at again for a group that it did not hold a moment ago."""
    rank = rank_collectives(group_now(TENSOR, "0-1", 2))
    rank.resolve_by(lambda number: f"name{number}", lambda: [group_now(WORLD, "0-3", 4)])
    complete(rank, 0, 0.5)
    assert list(rank.totals) == [("name10", "0-3", "name1")]


def test_positions() -> None:
    """Numbers count from 1; a group on a GPU has no completions in the black box, and shows none."""
    seen = group_now(WORLD, "0-3", 4)._replace(enqueued=7, oldest=50.0)
    unseen = group_now(TENSOR, "0-1", 2)._replace(enqueued=3)
    rank = rank_collectives(seen, unseen)
    complete(rank, 4, 0.5)
    complete(rank, 5, 0.5)
    rank.note_completed()
    assert rank.positions((seen, unseen), lambda moment: moment + 1000.0) == {
        GroupKey("default_pg", "0-3"): Position(enqueued=7, completed=6, oldest=1050.0),
        GroupKey("mesh_tp", "0-1"): Position(enqueued=3, completed=None, oldest=None),
    }


def test_many_groups_become_one() -> None:
    """A trainer that makes a group each step does not fill the database."""
    rank = rank_collectives(max_names=5)
    for number in range(100, 200):
        complete(rank, 0, 0.5, group=number)
    assert len(rank.totals) == 6
    assert rank.totals["(more)", "", "all_reduce"].count == 95


def test_numbers_without_a_name() -> None:
    """A hostile black box, whose records each claim another group and operation, has one of them."""
    rank = rank_collectives()
    for number in range(1000, 6000):
        complete(rank, number, 0.5, group=number, operation=number)
    assert len(rank.groups) == 1
    assert [each.count for each in rank.totals.values()] == [5000]


def test_pending_is_bounded() -> None:
    """What waits for comparison is bounded over all groups. There are many groups, and no peer of any."""
    rank = rank_collectives()
    for number, group in itertools.product(range(1000), range(100, 120)):
        complete(rank, number, 0.5, group=group)
    rank.note_completed()
    assert sum(len(each.completed) for each in rank.groups) <= MOST_PENDING_OF_RANK


def test_two_groups_of_one_number() -> None:
    """Two groups of one number are not kept apart. A broken table: neither's members are named."""
    rank = rank_collectives(group_now(WORLD, "0-3", 4), group_now(WORLD, "4-7", 4))
    complete(rank, 0, 0.5)
    assert list(rank.totals) == [("default_pg", "", "all_reduce")]


def test_collective_without_a_known_end() -> None:
    """It counts and takes no time; nor is it infinitely fast: no seconds until one is timed."""
    rank = rank_collectives(group_now(WORLD, "0-3", 4))
    complete(rank, 0, 0.0, size=100, flags=layout.UNTIMED)
    (totals,) = rank.totals.values()
    names = {series.metric.name for series in totals_series(("r", "0"), rank.totals)}
    assert (totals.count, totals.bytes, totals.timed) == (1, 100, False)
    assert names == {"rankwatch_collectives_total", "rankwatch_collective_bytes_total"}
    complete(rank, 1, 0.5, size=100)
    assert (totals.count, totals.seconds, totals.timed) == (2, 0.5, True)
    rank.note_completed()
    assert [each.last_completed for each in rank.groups] == [2]


@pytest.mark.parametrize(
    ("flags", "waited", "blocked"),
    [
        (0, 11.5, 0.5),
        (layout.BLOCKING, 0.0, 1.0),
        (layout.BLOCKING, 11.75, 0.25),
        (0, 0.0, 1.0),
        (0, 9.0, 1.0),
        (0, 13.0, 1.0),
        (0, math.nan, 1.0),
        (layout.UNTIMED, 0.0, 0.0),
    ],
)
def test_blocked_time(flags: int, waited: float, blocked: float) -> None:
    """A collective blocks from where a thread began to wait for it. Where that is unknown or impossible it is
    estimated; one without a known end blocks nothing."""
    rank, steps = collectives_and_steps(group_now(WORLD, "0-3", 4))
    complete(rank, 0, 1.0, start=11.0, flags=flags, waited=waited)
    steps.step(10.0, 14.0, 0)
    steps.settle(20.0, 20.0)
    assert steps.phase_seconds == pytest.approx({"communication": blocked, "other": 4.0 - blocked})


def test_several_waits_in_one_phase() -> None:
    """All are taken out, as tensor parallelism has them; an estimate sees only the last of them."""
    rank, steps = collectives_and_steps(group_now(WORLD, "0-3", 4))
    for number in range(3):
        complete(rank, number, 1.0, start=10.0 + 2 * number, waited=10.25 + 2 * number)
    steps.unsettled.phases.append((10.0, 16.0, "forward"))
    steps.step(10.0, 16.0, 0)
    steps.settle(20.0, 20.0)
    assert steps.phase_seconds == pytest.approx({"forward": 3.75, "communication": 2.25, "other": 0.0})
    assert steps.local_seconds == pytest.approx(3.75)
