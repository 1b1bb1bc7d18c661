"""Wait and transfer: what the ranks of a node say about the same collective."""

from __future__ import annotations

import pytest

from rankwatch.blackbox import layout
from rankwatch_agent.training.collectives.account import CollectiveAccount
from rankwatch_agent.training.collectives.ledger import MOST_PENDING
from rankwatch_agent.training.collectives.meeting import RunMeetings, TransferTotals
from support.training.collectives import TENSOR, WORLD, account, complete, group_now

WORLD_OF_4 = group_now(WORLD, "0-3", 4)
LARGE = ("default_pg", "0-3", "all_reduce", "large")


def meet(meetings: RunMeetings, *ranks: CollectiveAccount) -> None:
    for each in ranks:
        each.note_completed()
    meetings.meet([each.ledgers for each in ranks])


def waits(*ranks: CollectiveAccount) -> list[float | None]:
    return [totals.wait_seconds for each in ranks for totals in each.totals.values()]


def test_the_last_arriver_does_not_wait_and_gives_the_transfer() -> None:
    """It spent the least time; what the others spent beyond it, they waited."""
    meetings, ranks = RunMeetings(), [account(WORLD_OF_4) for _ in range(4)]
    for rank, seconds in zip(ranks, (0.5, 0.75, 0.125, 0.5), strict=True):
        complete(rank, 0, seconds)
    meet(meetings, *ranks)
    assert waits(*ranks) == [0.375, 0.625, 0.0, 0.375]
    (transfers,) = meetings.transfers.values()
    assert (transfers.count, transfers.seconds) == (1, 0.125)


def test_bus_bytes_are_those_of_nccl_tests_for_the_size_of_the_group() -> None:
    """Not for the number of ranks on this node."""
    meetings, ranks = RunMeetings(), [account(WORLD_OF_4) for _ in range(2)]
    for rank in ranks:
        complete(rank, 0, 0.1, size=1 << 20)
        complete(rank, 1, 0.1, size=1 << 20, operation=2)
    meet(meetings, *ranks)
    assert {at: each.bus_bytes for at, each in meetings.transfers.items()} == {
        LARGE: (1 << 20) * 1.5,
        ("default_pg", "0-3", "all_gather", "large"): (4 << 20) * 0.75,
    }


def test_a_collective_counts_once_all_ranks_have_told_of_it() -> None:
    """The ranks are read one after another, and some complete a moment later."""
    meetings, first, second = RunMeetings(), account(WORLD_OF_4), account(WORLD_OF_4)
    complete(first, 0, 0.5)
    complete(first, 1, 0.5)
    complete(second, 0, 0.25)
    meet(meetings, first, second)
    assert (meetings.transfers[LARGE].count, waits(first)) == (1, [0.25])
    complete(second, 1, 0.25)
    meet(meetings, first, second)
    meet(meetings, first, second)
    assert (meetings.transfers[LARGE].count, waits(first)) == (2, [0.5])


def test_groups_that_share_a_name_are_kept_apart_by_their_members() -> None:
    """Two tensor-parallel groups of a mesh, both numbered from 0."""
    meetings = RunMeetings()
    pairs = [account(group_now(TENSOR, members, 2)) for members in ("0-1", "0-1", "2-3", "2-3")]
    for rank, seconds in zip(pairs, (0.5, 0.25, 4.0, 2.0), strict=True):
        complete(rank, 0, seconds, group=TENSOR)
    meet(meetings, *pairs)
    assert waits(*pairs) == [0.25, 0.0, 2.0, 0.0]
    assert {at[1]: each.seconds for at, each in meetings.transfers.items()} == {"0-1": 0.25, "2-3": 2.0}


def test_a_rank_alone_of_its_group_has_a_transfer_and_no_wait() -> None:
    """Whom it waited for is on other nodes."""
    meetings, rank = RunMeetings(), account(WORLD_OF_4)
    complete(rank, 0, 0.5)
    meet(meetings, rank)
    assert waits(rank) == [None]
    assert meetings.transfers[LARGE].seconds == 0.5


@pytest.mark.parametrize("flag", [layout.POINT_TO_POINT, layout.FAILED])
def test_sends_receives_and_failures_take_no_part(flag: int) -> None:
    """They are counted, and compared with nothing."""
    meetings, ranks = RunMeetings(), [account(WORLD_OF_4) for _ in range(2)]
    for rank in ranks:
        complete(rank, 0, 0.5, flags=flag)
    meet(meetings, *ranks)
    assert not meetings.transfers
    assert waits(*ranks) == [None, None]
    assert [totals.count for each in ranks for totals in each.totals.values()] == [1, 1]


def test_a_collective_that_one_rank_has_no_time_of_is_not_compared() -> None:
    """It is not infinitely fast, and the others do not keep it; the next one counts as ever."""
    meetings, ranks = RunMeetings(), [account(WORLD_OF_4) for _ in range(2)]
    complete(ranks[0], 0, 0.5)
    complete(ranks[1], 0, 0.0, flags=layout.UNTIMED)
    meet(meetings, *ranks)
    assert waits(*ranks) == [None, None]
    assert not meetings.transfers
    assert not any(ledger.finished for each in ranks for ledger in each.ledgers)
    for rank, seconds in zip(ranks, (0.5, 0.25), strict=True):
        complete(rank, 1, seconds)
    meet(meetings, *ranks)
    assert waits(*ranks) == [0.25, 0.0]
    assert meetings.transfers[LARGE].seconds == 0.25


def test_ranks_that_call_different_collectives_are_not_compared() -> None:
    """The same number, another operation: a desync, and no wait."""
    meetings, first, second = RunMeetings(), account(WORLD_OF_4), account(WORLD_OF_4)
    complete(first, 0, 0.5, operation=1)
    complete(second, 0, 0.5, operation=2)
    meet(meetings, first, second)
    assert not meetings.transfers
    assert waits(first, second) == [None, None]


def test_a_black_box_without_tables_of_groups_is_not_compared() -> None:
    """Groups of one name could be different groups."""
    meetings, ranks = RunMeetings(), [account() for _ in range(2)]
    for rank in ranks:
        complete(rank, 0, 0.5)
    meet(meetings, *ranks)
    assert not meetings.transfers
    assert [list(each.totals) for each in ranks] == [[("default_pg", "", "all_reduce")]] * 2


def test_a_rank_that_never_tells_costs_bounded_memory_and_no_wrong_figure() -> None:
    """Its records were overwritten, or it stands still."""
    meetings, ahead, silent = RunMeetings(), account(WORLD_OF_4), account(WORLD_OF_4)
    for number in range(10 * MOST_PENDING):
        complete(ahead, number, 0.5)
        if number % 100 == 0:
            meet(meetings, ahead, silent)
            assert sum(len(each.finished) for each in ahead.ledgers) <= MOST_PENDING + 100
    complete(silent, 10 * MOST_PENDING - 1, 0.25)
    meet(meetings, ahead, silent)
    assert (meetings.transfers[LARGE].count, waits(ahead)) == (1, [0.25])


def test_the_numbers_of_a_new_process_are_not_compared_with_those_before() -> None:
    """After a restart they begin at 0 again."""
    meetings, first, second = RunMeetings(), account(WORLD_OF_4), account(WORLD_OF_4)
    complete(first, 0, 0.5)  # the other was killed before it told
    for rank in (first, second):
        rank.begin_process()
        rank.observe([WORLD_OF_4])
        complete(rank, 0, 0.25)
    meet(meetings, first, second)
    assert (meetings.transfers[LARGE].count, waits(first)) == (1, [0.0])


def test_a_group_is_waited_for_before_its_first_record() -> None:
    """The table of groups tells that a rank belongs to it: alone among the known would be wrong."""
    meetings, first, second = RunMeetings(), account(WORLD_OF_4), account(WORLD_OF_4)
    complete(first, 0, 0.5)
    meet(meetings, first, second)
    assert not meetings.transfers


def test_a_group_of_unknown_size_has_no_bus_bytes() -> None:
    """No formula without the number of ranks."""
    meetings, rank = RunMeetings(), account(group_now(WORLD, "0-3", 0))
    complete(rank, 0, 0.5)
    complete(rank, 1, 0.5, operation=3, size=0)
    meet(meetings, rank)
    assert [each.bus_bytes for each in meetings.transfers.values()] == [None, None]


def test_a_hostile_rank_cannot_multiply_the_series() -> None:
    """Each of its groups claims other members."""
    meetings = RunMeetings()
    for number in range(5000):
        rank = account(group_now(WORLD, f"0-{number}", 4))
        complete(rank, 0, 0.5)
        meet(meetings, rank)
    assert len(meetings.transfers) <= 2049
    assert sum(each.count for each in meetings.transfers.values()) == 5000
    assert isinstance(meetings.transfers["(more)", "", "(more)", "large"], TransferTotals)
