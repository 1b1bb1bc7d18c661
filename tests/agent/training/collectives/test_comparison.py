"""Collectives of ranks, wait and transfer of the same one on a node, and the formulas of nccl-tests."""

from __future__ import annotations

import itertools
import math

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.collectives.comparison import (
    BUS_FACTORS,
    RunComparison,
    TransferTotals,
    bus_factor,
    size_class,
    total_bytes,
)
from rankwatch_agent.training.collectives.totals import (
    MOST_PENDING,
    MOST_PENDING_OF_RANK,
    BoundedNames,
    GroupKey,
    Position,
    RankCollectives,
    totals_series,
)
from rankwatch_agent.training.steps.assembly import StepAssembler
from rankwatch_agent.training.steps.timeouts import LearntTimeouts

OPERATIONS = {1: "all_reduce", 2: "all_gather", 3: "barrier", 4: "send"}
WORLD, TENSOR = 10, 11
GROUPS = {WORLD: "default_pg", TENSOR: "mesh_tp"}


def group_now(number: int, members: str, size: int) -> GroupNow:
    """A row of the black box's table of groups."""
    return GroupNow(number, GROUPS[number], members, size, enqueued=0, oldest=0.0, operation="")


def collectives_and_steps(*groups: GroupNow, max_names: int = 64) -> tuple[RankCollectives, StepAssembler]:
    """The collectives of a rank whose black box holds these groups, and the steps that they are part of."""
    steps = StepAssembler(LearntTimeouts(), lambda _: None)
    made = RankCollectives(BoundedNames(max_names), steps)
    names = {**OPERATIONS, **GROUPS}
    made.resolve_by(lambda number: names.get(number, f"name{number}"), lambda: groups)
    made.observe(groups)
    return made, steps


def rank_collectives(*groups: GroupNow, max_names: int = 64) -> RankCollectives:
    return collectives_and_steps(*groups, max_names=max_names)[0]


def complete(
    rank: RankCollectives,
    number: int,
    seconds: float,
    *,
    operation: int = 1,
    group: int = WORLD,
    size: int = 1 << 20,
    flags: int = 0,
    waited: float = 0.0,
    start: float = 100.0,
) -> None:
    """Have the rank complete the collective of this number."""
    payload = layout.COLLECTIVE.pack(size, number, group, flags, waited)
    rank.take(operation, start, start + seconds, payload, 0)


WORLD_OF_4 = group_now(WORLD, "0-3", 4)
LARGE = ("default_pg", "0-3", "all_reduce", "large")


def compare(*ranks: RankCollectives, comparison: RunComparison | None = None) -> RunComparison:
    """Compare what these ranks have completed."""
    comparison = comparison or RunComparison()
    for each in ranks:
        each.note_completed()
    comparison.compare([each.groups for each in ranks])
    return comparison


def waits(*ranks: RankCollectives) -> list[float | None]:
    return [totals.wait_seconds for each in ranks for totals in each.totals.values()]


@pytest.fixture
def pair() -> list[RankCollectives]:
    """Two ranks of a group of four."""
    return [rank_collectives(WORLD_OF_4) for _ in range(2)]


def test_bus_bytes(pair: list[RankCollectives]) -> None:
    """Those of nccl-tests for the size of the group; how many ranks this node has does not matter."""
    for rank in pair:
        complete(rank, 0, 0.1, size=1 << 20)
        complete(rank, 1, 0.1, size=1 << 20, operation=2)
    assert {at: each.bus_bytes for at, each in compare(*pair).transfers.items()} == {
        LARGE: (1 << 20) * 1.5,
        ("default_pg", "0-3", "all_gather", "large"): (4 << 20) * 0.75,
    }


def test_collective_counts_once_all_completed_it(pair: list[RankCollectives]) -> None:
    """Ranks are read one after another, and some complete a moment later."""
    first, second = pair
    complete(first, 0, 0.5)
    complete(first, 1, 0.5)
    complete(second, 0, 0.25)
    comparison = compare(*pair)
    assert (comparison.transfers[LARGE].count, waits(first)) == (1, [0.25])
    complete(second, 1, 0.25)
    for _ in range(2):
        compare(*pair, comparison=comparison)
    assert (comparison.transfers[LARGE].count, waits(first)) == (2, [0.5])


def test_groups_of_one_name() -> None:
    """Two tensor-parallel groups of a mesh, both numbered from 0, are told apart by their members."""
    ranks = [rank_collectives(group_now(TENSOR, members, 2)) for members in ("0-1", "0-1", "2-3", "2-3")]
    for rank, seconds in zip(ranks, (0.5, 0.25, 4.0, 2.0), strict=True):
        complete(rank, 0, seconds, group=TENSOR)
    transfers = compare(*ranks).transfers
    assert waits(*ranks) == [0.25, 0.0, 2.0, 0.0]
    assert {at[1]: each.seconds for at, each in transfers.items()} == {"0-1": 0.25, "2-3": 2.0}


def test_rank_alone_of_its_group() -> None:
    """It has a transfer and no wait: the ranks that it waited for are on other nodes."""
    rank = rank_collectives(WORLD_OF_4)
    complete(rank, 0, 0.5)
    assert compare(rank).transfers[LARGE].seconds == 0.5
    assert waits(rank) == [None]


@pytest.mark.parametrize("flag", [layout.POINT_TO_POINT, layout.FAILED])
def test_sends_receives_and_failures_take_no_part(pair: list[RankCollectives], flag: int) -> None:
    """They are counted, and compared with nothing."""
    for rank in pair:
        complete(rank, 0, 0.5, flags=flag)
    assert not compare(*pair).transfers
    assert waits(*pair) == [None, None]
    assert [totals.count for each in pair for totals in each.totals.values()] == [1, 1]


def test_collective_without_a_time(pair: list[RankCollectives]) -> None:
    """It is not infinitely fast, and the others do not keep it; the next one counts."""
    complete(pair[0], 0, 0.5)
    complete(pair[1], 0, 0.0, flags=layout.UNTIMED)
    comparison = compare(*pair)
    assert (waits(*pair), comparison.transfers) == ([None, None], {})
    assert not any(group.completed for each in pair for group in each.groups)
    complete(pair[0], 1, 0.5)
    complete(pair[1], 1, 0.25)
    compare(*pair, comparison=comparison)
    assert (waits(*pair), comparison.transfers[LARGE].seconds) == ([0.25, 0.0], 0.25)


def test_different_collectives(pair: list[RankCollectives]) -> None:
    """The same number, another operation: a desync, and no wait."""
    for operation, rank in enumerate(pair, 1):
        complete(rank, 0, 0.5, operation=operation)
    assert not compare(*pair).transfers
    assert waits(*pair) == [None, None]


def test_unknown_members() -> None:
    """Without a table of groups, groups of one name could be different groups."""
    ranks = [rank_collectives() for _ in range(2)]
    for rank in ranks:
        complete(rank, 0, 0.5)
    assert not compare(*ranks).transfers
    assert [list(each.totals) for each in ranks] == [[("default_pg", "", "all_reduce")]] * 2


def test_silent_rank_costs_bounded_memory(pair: list[RankCollectives]) -> None:
    """Its records were overwritten, or it hangs: bounded memory and no wrong figure."""
    comparison, (ahead, silent) = RunComparison(), pair
    for number in range(10 * MOST_PENDING):
        complete(ahead, number, 0.5)
        if number % 100 == 0:
            compare(*pair, comparison=comparison)
            assert sum(len(each.completed) for each in ahead.groups) <= MOST_PENDING + 100
    complete(silent, 10 * MOST_PENDING - 1, 0.25)
    compare(*pair, comparison=comparison)
    assert (comparison.transfers[LARGE].count, waits(ahead)) == (1, [0.25])


def test_new_process_is_not_compared_with_the_old(pair: list[RankCollectives]) -> None:
    """After a restart numbers begin at 0 again."""
    complete(pair[0], 0, 0.5)  # the other was killed before it told
    for rank in pair:
        rank.begin_process()
        rank.observe([WORLD_OF_4])
        complete(rank, 0, 0.25)
    comparison = compare(*pair)
    assert (comparison.transfers[LARGE].count, waits(pair[0])) == (1, [0.0])


def test_group_is_expected_before_its_first_record(pair: list[RankCollectives]) -> None:
    """By the table of groups: the ranks with records are not all."""
    complete(pair[0], 0, 0.5)
    assert not compare(*pair).transfers


def test_a_group_of_unknown_size_has_no_bus_bytes() -> None:
    """No formula without the number of ranks."""
    rank = rank_collectives(group_now(WORLD, "0-3", 0))
    complete(rank, 0, 0.5)
    complete(rank, 1, 0.5, operation=3, size=0)
    assert [each.bus_bytes for each in compare(rank).transfers.values()] == [None, None]


def test_a_hostile_rank_cannot_multiply_the_series() -> None:
    """Each of its groups claims other members."""
    comparison = RunComparison()
    for number in range(5000):
        rank = rank_collectives(group_now(WORLD, f"0-{number}", 4))
        complete(rank, 0, 0.5)
        compare(rank, comparison=comparison)
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
    """From where a thread began to wait; estimated where that is unknown or impossible; 0 without an end."""
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
