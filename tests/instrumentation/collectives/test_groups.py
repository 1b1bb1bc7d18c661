"""The tables of process groups, written by the rank."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox import layout
from rankwatch.collectives.groups import Group, Groups
from support.jobs.gloo import Recording, gloo

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def world() -> Iterator[Any]:
    with gloo() as group:
        yield group


def test_the_65th_group_has_no_row_and_is_numbered_all_the_same(recording: Recording, world: Any) -> None:
    """Its records stay, under a name of its own."""
    groups = Groups(recording.writer)
    made = [dist.new_group([0], group_desc=f"g{each}") for each in range(layout.MAX_GROUPS + 2)]
    found = [groups.of(each) for each in made]
    for group in found:
        assert group.collective(1) == 0
        group.in_flight(group, 1.0)
    assert [group.name for group in recording.groups] == [f"g{each}" for each in range(layout.MAX_GROUPS)]
    assert len({group.number for group in found}) == len(found)
    for group in found:
        group.complete(group)
    assert {group.oldest for group in recording.groups} == {0.0}


def test_groups_that_pytorch_does_not_know_keep_their_counters(recording: Recording) -> None:
    """Their Python objects come and go; their members are not known."""

    class Foreign:
        group_name, group_desc = "foreign", "undefined"

        def size(self) -> int:
            return 3

    groups = Groups(recording.writer)
    assert [groups.of(Foreign()).collective(1) for _ in range(3)] == [0, 1, 2]
    (row,) = recording.groups
    assert (row.name, row.members, row.size, row.enqueued) == ("foreign", "", 3, 3)


def test_a_full_table_of_names_costs_only_the_names(recording: Recording, world: Any) -> None:
    """The counters of the group go on."""
    for each in range(layout.NAME_COUNT):
        recording.writer.name_number(f"n{each}")
    group = Groups(recording.writer).of(world)
    assert [group.collective(1), group.collective(1)] == [0, 1]
    assert recording.groups == ()


def test_a_refused_collective_gives_its_number_back(recording: Recording, world: Any) -> None:
    """Its peers, which were refused likewise, count the same."""
    group = Groups(recording.writer).of(world)
    group.collective(1)
    group.refused(group.collective(1))
    assert recording.groups[0].enqueued == 1
    assert group.collective(1) == 1


def test_the_oldest_is_right_after_threads_have_completed_in_any_order(
    recording: Recording, world: Any
) -> None:
    """Nothing is left standing in the box when all is complete."""
    group = Groups(recording.writer).of(world)
    lanes = [[object() for _ in range(300)] for _ in range(6)]

    def work(lane: list[object]) -> None:
        for at, each in enumerate(lane):
            group.in_flight(each, 1.0 + at)
            if at % 3 == 2:
                for done in (lane[at - 1], each, lane[at - 2]):
                    group.complete(done)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recording.groups[0].oldest == 0.0
    group.in_flight("first", 7.0)
    group.in_flight("second", 8.0)
    assert recording.groups[0].oldest == 7.0
    group.complete("first")
    assert recording.groups[0].oldest == 8.0


def test_threads_that_meet_groups_at_once_leave_all_of_them_in_the_box(recording: Recording) -> None:
    """Each has a row of its own."""
    groups = Groups(recording.writer)

    class Foreign:
        group_desc = "lane"

        def __init__(self, name: str) -> None:
            self.group_name = self.group_desc = name

        def size(self) -> int:
            return 2

    met: list[Group] = []
    kept = [Foreign(f"lane{each}") for each in range(40)]
    threads = [threading.Thread(target=lambda each=each: met.append(groups.of(each))) for each in kept]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {group.name for group in recording.groups} == {each.group_name for each in kept}
    assert len(met) == 40
