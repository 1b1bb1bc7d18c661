"""Wait and transfer of the same collective on the ranks of a node, and the formulas of nccl-tests."""

from __future__ import annotations

import pytest

from rankwatch.blackbox import layout
from rankwatch_agent.training.collectives.comparison import (
    BUS_FACTORS,
    RunComparison,
    TransferTotals,
    bus_factor,
    size_class,
    total_bytes,
)
from rankwatch_agent.training.collectives.totals import MOST_PENDING, RankCollectives
from support.training.collectives import TENSOR, WORLD, complete, group_now, rank_collectives

WORLD_OF_4 = group_now(WORLD, "0-3", 4)
LARGE = ("default_pg", "0-3", "all_reduce", "large")


def compare(comparison: RunComparison, *ranks: RankCollectives) -> None:
    for each in ranks:
        each.note_completed()
    comparison.compare([each.groups for each in ranks])


def waits(*ranks: RankCollectives) -> list[float | None]:
    return [totals.wait_seconds for each in ranks for totals in each.totals.values()]


def test_bus_bytes() -> None:
    """Those of nccl-tests for the size of the group; how many ranks this node has does not matter."""
    comparison, ranks = RunComparison(), [rank_collectives(WORLD_OF_4) for _ in range(2)]
    for rank in ranks:
        complete(rank, 0, 0.1, size=1 << 20)
        complete(rank, 1, 0.1, size=1 << 20, operation=2)
    compare(comparison, *ranks)
    assert {at: each.bus_bytes for at, each in comparison.transfers.items()} == {
        LARGE: (1 << 20) * 1.5,
        ("default_pg", "0-3", "all_gather", "large"): (4 << 20) * 0.75,
    }


def test_collective_counts_once_all_completed_it() -> None:
    """Ranks are read one after another, and some complete a moment later."""
    comparison, first, second = RunComparison(), rank_collectives(WORLD_OF_4), rank_collectives(WORLD_OF_4)
    complete(first, 0, 0.5)
    complete(first, 1, 0.5)
    complete(second, 0, 0.25)
    compare(comparison, first, second)
    assert (comparison.transfers[LARGE].count, waits(first)) == (1, [0.25])
    complete(second, 1, 0.25)
    compare(comparison, first, second)
    compare(comparison, first, second)
    assert (comparison.transfers[LARGE].count, waits(first)) == (2, [0.5])


def test_groups_of_one_name() -> None:
    """Two tensor-parallel groups of a mesh, both numbered from 0, are told apart by their members."""
    comparison = RunComparison()
    pairs = [rank_collectives(group_now(TENSOR, members, 2)) for members in ("0-1", "0-1", "2-3", "2-3")]
    for rank, seconds in zip(pairs, (0.5, 0.25, 4.0, 2.0), strict=True):
        complete(rank, 0, seconds, group=TENSOR)
    compare(comparison, *pairs)
    assert waits(*pairs) == [0.25, 0.0, 2.0, 0.0]
    assert {at[1]: each.seconds for at, each in comparison.transfers.items()} == {"0-1": 0.25, "2-3": 2.0}


def test_rank_alone_of_its_group() -> None:
    """It has a transfer and no wait: the ranks that it waited for are on other nodes."""
    comparison, rank = RunComparison(), rank_collectives(WORLD_OF_4)
    complete(rank, 0, 0.5)
    compare(comparison, rank)
    assert waits(rank) == [None]
    assert comparison.transfers[LARGE].seconds == 0.5


@pytest.mark.parametrize("flag", [layout.POINT_TO_POINT, layout.FAILED])
def test_sends_receives_and_failures_take_no_part(flag: int) -> None:
    """They are counted, and compared with nothing."""
    comparison, ranks = RunComparison(), [rank_collectives(WORLD_OF_4) for _ in range(2)]
    for rank in ranks:
        complete(rank, 0, 0.5, flags=flag)
    compare(comparison, *ranks)
    assert not comparison.transfers
    assert waits(*ranks) == [None, None]
    assert [totals.count for each in ranks for totals in each.totals.values()] == [1, 1]


def test_collective_without_a_time() -> None:
    """It is not infinitely fast, and the others do not keep it; the next one counts."""
    comparison, ranks = RunComparison(), [rank_collectives(WORLD_OF_4) for _ in range(2)]
    complete(ranks[0], 0, 0.5)
    complete(ranks[1], 0, 0.0, flags=layout.UNTIMED)
    compare(comparison, *ranks)
    assert waits(*ranks) == [None, None]
    assert not comparison.transfers
    assert not any(group.completed for each in ranks for group in each.groups)
    for rank, seconds in zip(ranks, (0.5, 0.25), strict=True):
        complete(rank, 1, seconds)
    compare(comparison, *ranks)
    assert waits(*ranks) == [0.25, 0.0]
    assert comparison.transfers[LARGE].seconds == 0.25


def test_different_collectives() -> None:
    """The same number, another operation: a desync, and no wait."""
    comparison, first, second = RunComparison(), rank_collectives(WORLD_OF_4), rank_collectives(WORLD_OF_4)
    complete(first, 0, 0.5, operation=1)
    complete(second, 0, 0.5, operation=2)
    compare(comparison, first, second)
    assert not comparison.transfers
    assert waits(first, second) == [None, None]


def test_unknown_members() -> None:
    """A black box without a table of groups is not compared. Groups of one name could be different groups."""
    comparison, ranks = RunComparison(), [rank_collectives() for _ in range(2)]
    for rank in ranks:
        complete(rank, 0, 0.5)
    compare(comparison, *ranks)
    assert not comparison.transfers
    assert [list(each.totals) for each in ranks] == [[("default_pg", "", "all_reduce")]] * 2


def test_silent_rank_costs_bounded_memory() -> None:
    """A silent rank costs bounded memory and no wrong figure. Its records were overwritten, or it hangs."""
    comparison, ahead, silent = RunComparison(), rank_collectives(WORLD_OF_4), rank_collectives(WORLD_OF_4)
    for number in range(10 * MOST_PENDING):
        complete(ahead, number, 0.5)
        if number % 100 == 0:
            compare(comparison, ahead, silent)
            assert sum(len(each.completed) for each in ahead.groups) <= MOST_PENDING + 100
    complete(silent, 10 * MOST_PENDING - 1, 0.25)
    compare(comparison, ahead, silent)
    assert (comparison.transfers[LARGE].count, waits(ahead)) == (1, [0.25])


def test_new_process_is_not_compared_with_the_old() -> None:
    """After a restart numbers begin at 0 again."""
    comparison, first, second = RunComparison(), rank_collectives(WORLD_OF_4), rank_collectives(WORLD_OF_4)
    complete(first, 0, 0.5)  # the other was killed before it told
    for rank in (first, second):
        rank.begin_process()
        rank.observe([WORLD_OF_4])
        complete(rank, 0, 0.25)
    compare(comparison, first, second)
    assert (comparison.transfers[LARGE].count, waits(first)) == (1, [0.0])


def test_group_is_expected_before_its_first_record() -> None:
    """By the table of groups: the ranks with records are not all."""
    comparison, first, second = RunComparison(), rank_collectives(WORLD_OF_4), rank_collectives(WORLD_OF_4)
    complete(first, 0, 0.5)
    compare(comparison, first, second)
    assert not comparison.transfers


def test_a_group_of_unknown_size_has_no_bus_bytes() -> None:
    """No formula without the number of ranks."""
    comparison, rank = RunComparison(), rank_collectives(group_now(WORLD, "0-3", 0))
    complete(rank, 0, 0.5)
    complete(rank, 1, 0.5, operation=3, size=0)
    compare(comparison, rank)
    assert [each.bus_bytes for each in comparison.transfers.values()] == [None, None]


def test_a_hostile_rank_cannot_multiply_the_series() -> None:
    """Each of its groups claims other members."""
    comparison = RunComparison()
    for number in range(5000):
        rank = rank_collectives(group_now(WORLD, f"0-{number}", 4))
        complete(rank, 0, 0.5)
        compare(comparison, rank)
    assert len(comparison.transfers) <= 2049
    assert sum(each.count for each in comparison.transfers.values()) == 5000
    assert isinstance(comparison.transfers["(more)", "", "(more)", "large"], TransferTotals)


@pytest.mark.parametrize(
    ("operation", "of_two", "of_eight"),
    [
        ("all_reduce", 1.0, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("all_to_all", 0.5, 0.875),
        ("gather", 0.5, 0.875),
        ("scatter", 0.5, 0.875),
        ("broadcast", 1.0, 1.0),
        ("reduce", 1.0, 1.0),
    ],
)
def test_bus_factors(operation: str, of_two: float, of_eight: float) -> None:
    """Those of nccl-tests: doc/PERFORMANCE.md, and src/gather.cu and src/scatter.cu for two more."""
    assert (bus_factor(operation, 2), bus_factor(operation, 8)) == (of_two, of_eight)
    assert (bus_factor(operation, 0), bus_factor("barrier", 8)) == (None, None), "unknown size or formula"
    assert bus_factor("all_reduce", 1) == 0.0, "a rank alone moves nothing"


def test_every_formula_has_a_literal() -> None:
    """No formula is added without its literal above."""
    (mark,) = test_bus_factors.pytestmark  # type: ignore[attr-defined]
    assert {each[0] for each in mark.args[1]} == set(BUS_FACTORS)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("all_reduce", 1000),
        ("reduce_scatter", 1000),
        ("all_to_all", 1000),
        ("broadcast", 1000),
        ("all_gather", 4000),
        ("gather", 4000),
    ],
)
def test_total_bytes(operation: str, expected: int) -> None:
    """Those of nccl-tests: a rank's input to a gather is its share; elsewhere it is the whole."""
    assert total_bytes(operation, 1000, 4) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "small"), (65_535, "small"), (65_536, "medium"), (1_048_575, "medium"), (1_048_576, "large")],
)
def test_size_classes(size: int, expected: str) -> None:
    """They begin at 64 KiB and 1 MiB; the bound itself belongs to the larger class."""
    assert size_class(size) == expected
