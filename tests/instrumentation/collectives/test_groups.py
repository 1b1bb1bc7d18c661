"""The tables of process groups in the black box, and the text of their members."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch.blackbox import layout
from rankwatch.collectives.groups import Groups
from rankwatch.members import MOST_CHARACTERS, members_text
from support.fuzzing import BUSY_MACHINE
from support.jobs.gloo import Recording

dist = pytest.importorskip("torch.distributed")


def test_more_groups_than_rows(recording: Recording, world: Any) -> None:
    """The 65th group has no row, but a name of its own for its records, and its collectives are numbered."""
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


def test_group_unknown_to_pytorch(recording: Recording) -> None:
    """It keeps its counters, although its Python object changes. Its members stay unknown."""
    groups = Groups(recording.writer)
    objects = [Mock(group_name="foreign", group_desc="undefined", size=lambda: 3) for _ in range(3)]
    assert [groups.of(each).collective(1) for each in objects] == [0, 1, 2]
    (row,) = recording.groups
    assert (row.name, row.members, row.size, row.enqueued) == ("foreign", "", 3, 3)


def test_full_table_of_names(recording: Recording, world: Any) -> None:
    """The group has no row, but its counter continues."""
    for each in range(layout.NAME_COUNT):
        recording.writer.name_number(f"n{each}")
    group = Groups(recording.writer).of(world)
    assert [group.collective(1), group.collective(1)] == [0, 1]
    assert recording.groups == ()


def test_number_of_refused_collective(recording: Recording, world: Any) -> None:
    """The next collective gets it. The peers refuse the collective too, so that all ranks count the same."""
    group = Groups(recording.writer).of(world)
    group.collective(1)
    group.refused(group.collective(1))
    assert recording.groups[0].enqueued == 1
    assert group.collective(1) == 1


def test_oldest_operation(recording: Recording, world: Any) -> None:
    """It is right after threads have completed operations in any order. Once all are complete there is
    none."""
    group = Groups(recording.writer).of(world)
    lanes = [[object() for _ in range(300)] for _ in range(6)]

    def work(lane: list[object]) -> None:
        for at, each in enumerate(lane):
            group.in_flight(each, 1.0 + at)
            if at % 3 == 2:
                for done in (lane[at - 1], each, lane[at - 2]):
                    group.complete(done)

    with ThreadPoolExecutor(len(lanes)) as threads:
        list(threads.map(work, lanes))
    assert recording.groups[0].oldest == 0.0
    group.in_flight("first", 7.0)
    group.in_flight("second", 8.0)
    assert recording.groups[0].oldest == 7.0
    group.complete("first")
    assert recording.groups[0].oldest == 8.0


def test_groups_of_several_threads(recording: Recording) -> None:
    """Threads that use new groups at the same time give each group its own row."""
    groups = Groups(recording.writer)
    kept = [Mock(group_name=f"lane{each}", group_desc=f"lane{each}", size=lambda: 2) for each in range(40)]
    with ThreadPoolExecutor(len(kept)) as threads:
        found = list(threads.map(groups.of, kept))
    assert {group.name for group in recording.groups} == {each.group_name for each in kept}
    assert len(found) == 40


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), ""),
        ((5,), "5"),
        ((0, 1), "0-1"),
        ((0, 2), "0,2"),
        ((3, 1, 0, 2), "0-3"),
        ((0, 4, 8, 12), "0-12/4"),
        ((0, 1, 2, 3, 8, 9, 10, 11), "0-3,8-11"),
        (range(16384), "0-16383"),
    ],
)
def test_members_text(ranks: tuple[int, ...], text: str) -> None:
    """Ranks are grouped into runs, which a person reads at a glance."""
    assert members_text(ranks) == text


@BUSY_MACHINE
@given(st.sets(st.integers(0, 20000), max_size=200), st.sets(st.integers(0, 20000), max_size=200))
def test_unique_text(one: set[int], other: set[int]) -> None:
    """Two groups have the same short text only if they have the same ranks, in any order."""
    first, second = members_text(list(one)), members_text(sorted(other, reverse=True))
    assert len(first) <= MOST_CHARACTERS
    assert (first == second) == (one == other)
