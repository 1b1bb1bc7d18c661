"""The structured answer of RAS: what is read of it, and what is refused."""

from __future__ import annotations

import json

import pytest

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.nccl_ras.communicators import Absence, Communicator, Process
from rankwatch_agent.sources.nccl_ras.json_form import MAX_OBJECTS, parse_json
from support.sources.nccl_ras import Comm, Gone, json_status


def only(comm: Comm) -> Communicator:
    (found,) = parse_json(json_status(comm)).communicators
    return found


def test_ranks_that_launched_the_same_are_even() -> None:
    """With the number of their launches, and nobody behind."""
    found = only(Comm((7, 7, 7), name=0xAB))
    assert (found.name, found.size, found.spread, found.launches) == ("00000000000000ab", 3, 0, 7)
    assert (found.uneven, found.behind, found.named_behind, found.missing) == (False, 0, (), 0)


def test_the_ranks_behind_are_named_and_not_the_few_ahead() -> None:
    """NVIDIA/nccl#1911: RAS itself prints whoever is in the minority."""
    found = only(Comm((641, 640, 641, 638)))
    assert [each[:2] for each in found.named_behind] == [(1, 1), (3, 3)]
    assert (found.spread, found.behind) == (3, 2)
    assert found.named_behind[1].process == Process("10.0.0.0", 1003, 3)


def test_many_ranks_behind_are_counted_and_none_is_named() -> None:
    """Thirty behind two: none of the thirty stands out."""
    found = only(Comm((640,) * 30 + (641,) * 2))
    assert (found.behind, found.named_behind) == (30, ())


def test_another_kind_of_collective_makes_the_odd_one_late() -> None:
    """All have launched as many; most of one kind. At a draw nobody is named."""
    usual, other = {"AllReduce": 5}, {"AllReduce": 4, "AllGather": 1}
    found = only(Comm((usual, other, usual)))
    assert (found.uneven, found.spread, [each.rank for each in found.named_behind]) == (True, 1, [1])
    found = only(Comm((usual, other)))
    assert (found.uneven, found.named_behind) == (True, ())


def test_missing_ranks_tell_why() -> None:
    """Dead, silent, or without the communicator; each process counts once."""
    gone = (Gone(2, dead=True), Gone(3), Gone(4, unresponsive=False))
    first = Comm((5, 5), gone=gone)
    report = parse_json(json_status(first, Comm((5, 5), name=2, gone=gone)))
    assert report.processes_missing == {Absence.DEAD: 1, Absence.UNRESPONSIVE: 1, Absence.LEFT: 1}
    found = report.communicators[0]
    assert (found.size, found.missing, found.uneven) == (5, 3, True)
    assert [(each.rank, each.absence) for each in found.named_missing] == [
        (2, Absence.DEAD),
        (3, Absence.UNRESPONSIVE),
        (4, Absence.LEFT),
    ]


def test_the_comma_that_one_version_forgets_is_put_in() -> None:
    """NCCL 2.28.9 writes missing ranks so that the whole answer is no JSON."""
    body = json_status(Comm((5, 5), gone=(Gone(2),)), comma=False)
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    assert parse_json(body).communicators[0].missing == 1


@pytest.mark.parametrize(
    ("status", "failed", "starting", "ending"),
    [
        ({}, False, False, False),
        ({"async_error": 6}, True, False, False),
        ({"async_error": 7}, False, False, False),
        ({"init_state": 2}, True, True, False),
        ({"init_state": 7}, False, True, False),
        ({"destroy_flag": True}, False, False, True),
        ({"abort_flag": True}, False, False, True),
    ],
)
def test_the_status_of_ranks_is_read(
    status: dict[str, int | bool], failed: bool, starting: bool, ending: bool
) -> None:
    """7 is "in progress" and no error."""
    found = only(Comm((5, 5), status={0: status, 1: status}))
    assert (found.failed, found.starting, found.ending) == (failed, starting, ending)
    assert not found.uneven


def test_a_status_that_only_some_ranks_have_is_uneven() -> None:
    """One destroys the communicator, the others go on."""
    found = only(Comm((5, 5), status={1: {"destroy_flag": True}}))
    assert (found.uneven, found.ending) == (True, False)


def test_the_mark_changes_with_every_launch_and_with_nothing_else() -> None:
    """Two answers of the same moment are equal."""
    assert only(Comm((5, 6))).fingerprint == only(Comm((5, 6), name=9)).fingerprint
    assert only(Comm((5, 6))).fingerprint != only(Comm((6, 5))).fingerprint


def test_hashes_that_two_communicators_share_are_told_apart() -> None:
    """NCCL says that the first hash need not be unique."""
    report = parse_json(json_status(Comm((1,)), Comm((1,), second="0x3:0x4"), Comm((1,), second="0x3:0x4")))
    assert [each.name for each in report.communicators] == ["27a079b828ff1a75/1:2", "27a079b828ff1a75/3:4"]


def test_the_largest_communicator_gives_places_only_where_it_is_one() -> None:
    """Or where all as large as it are of one mind."""
    world, pair = Comm((1, 1, 1)), Comm((1, 1), name=2, places=(2, 0))
    assert list(parse_json(json_status(pair, world)).largest.values()) == [0, 1, 2]
    assert parse_json(json_status(world, Comm((1, 1, 1), name=3))).largest
    assert parse_json(json_status(world, Comm((1, 1, 1), name=3, places=(2, 1, 0)))).largest == {}


GOOD = json_status(Comm((5, 5), gone=(Gone(2),)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"nccl_version":' * 50_000,
        GOOD[:-40],
        GOOD[: len(GOOD) // 2],
        GOOD.replace(b'"2.28.9+cuda13.0"', b'"' + b"x" * 500 + b'"'),
        GOOD.replace(b'"2.28.9+cuda13.0"', b'"\\ud800"'),
        GOOD.replace(b'"size": 3', b'"size": 1e400'),
        GOOD.replace(b'"size": 3', b'"size": ' + b"9" * 10_000),
        GOOD.replace(b'"rank": 0', b'"rank": -7'),
        GOOD.replace(b'"AllReduce": 5', b'"AllReduce": -5'),
        GOOD.replace(b'"AllReduce": 5', b'"AllReduce": ' + b"9" * 30),
        GOOD.replace(b'"AllReduce": 5', b'"AllReduce": "many"'),
        GOOD.replace(b'"AllReduce": 5', b'"AllReduce": [[[1]]]'),
        GOOD.replace(b'"AllReduce"', b'"' + b"k" * 5000 + b'"'),
        GOOD.replace(b'"0x27a079b828ff1a75"', b'"\\n27"'),
        GOOD.replace(b'"unresponsive": true', b'"unresponsive": "yes"'),
    ],
)
def test_what_is_no_status_is_one_clear_error(body: bytes) -> None:
    """Whatever it is instead."""
    with pytest.raises(CollectError, match="could not read the answer of NCCL RAS"):
        parse_json(body)


def test_every_rank_with_kinds_of_its_own_is_refused() -> None:
    """Else comparing all with all would take for ever."""
    ranks: list[dict[str, object]] = [
        {"rank": at, "host": "", "pid": at, "status": {"init_state": 0}, "collective_counts": {f"k{at}": 1}}
        for at in range(100)
    ]
    document = {"nccl_version": "2", "communicators": [{"hash": "0x1", "size": 100, "ranks": ranks}]}
    with pytest.raises(CollectError, match="too many kinds"):
        parse_json(json.dumps(document).encode())


def test_more_objects_than_any_job_has_are_refused_unread() -> None:
    """They would cost many times their size."""
    with pytest.raises(CollectError, match="more than 1000000 objects"):
        parse_json(b"{" * (MAX_OBJECTS + 1))


def test_a_job_of_a_thousand_ranks_is_read_as_a_whole() -> None:
    """With a tensor-parallel communicator for each eight of them."""
    groups = [Comm((9,) * 8, name=index + 2) for index in range(128)]
    report = parse_json(json_status(Comm((3,) * 1024, name=1), *groups))
    assert (len(report.communicators), len(report.pids), len(report.largest)) == (129, 1024, 1024)
