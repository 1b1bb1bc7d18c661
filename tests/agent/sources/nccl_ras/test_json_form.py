"""The JSON form of RAS's answer."""

from __future__ import annotations

import json

import pytest

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.nccl_ras.communicators import Absence, Communicator, Process, Report
from rankwatch_agent.sources.nccl_ras.json_form import MAX_OBJECTS, parse_json
from support.sources.nccl_ras import Comm, Gone, json_status


def parsed(body: bytes) -> Report:
    return parse_json(bytearray(body))


def only(comm: Comm) -> Communicator:
    (found,) = parsed(json_status(comm)).communicators
    return found


def test_even_launches() -> None:
    found = only(Comm((7, 7, 7), name=0xAB))
    assert (found.name, found.size, found.spread, found.launches) == ("00000000000000ab", 3, 0, 7)
    assert (found.uneven, found.behind, found.named_behind, found.missing) == (False, 0, (), 0)


def test_ranks_behind_are_named() -> None:
    """RAS itself prints the minority, which may be ahead (NVIDIA/nccl#1911). Of thirty none stands out."""
    found = only(Comm((641, 640, 641, 638)))
    assert [each[:2] for each in found.named_behind] == [(1, 1), (3, 3)]
    assert (found.spread, found.behind) == (3, 2)
    assert found.named_behind[1].process == Process("10.0.0.0", 1003, 3)
    found = only(Comm((640,) * 30 + (641,) * 2))
    assert (found.behind, found.named_behind) == (30, ())


def test_other_kind_of_collective() -> None:
    """All have launched as many, most of one kind: the odd one is behind. At a draw nobody is."""
    usual, other = {"AllReduce": 5}, {"AllReduce": 4, "AllGather": 1}
    found = only(Comm((usual, other, usual)))
    assert (found.uneven, found.spread, [each.rank for each in found.named_behind]) == (True, 1, [1])
    found = only(Comm((usual, other)))
    assert (found.uneven, found.named_behind) == (True, ())


def test_reasons_of_missing_ranks() -> None:
    """Dead, unresponsive, or without the communicator. Each process counts once."""
    gone = (Gone(2, dead=True), Gone(3), Gone(4, unresponsive=False))
    first = Comm((5, 5), gone=gone)
    report = parsed(json_status(first, Comm((5, 5), name=2, gone=gone)))
    assert report.processes_missing == {Absence.DEAD: 1, Absence.UNRESPONSIVE: 1, Absence.LEFT: 1}
    found = report.communicators[0]
    assert (found.size, found.missing, found.uneven) == (5, 3, True)
    assert {each.rank: each.absence for each in found.named_missing} == dict(enumerate(Absence, 2))


def test_missing_comma() -> None:
    """NCCL 2.28.9 writes missing ranks as invalid JSON."""
    body = json_status(Comm((5, 5), gone=(Gone(2),)), comma=False)
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    assert parsed(body).communicators[0].missing == 1


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
def test_status_of_ranks(status: dict[str, int | bool], failed: bool, starting: bool, ending: bool) -> None:
    """7 is "in progress", not an error."""
    found = only(Comm((5, 5), status={0: status, 1: status}))
    assert (found.failed, found.starting, found.ending) == (failed, starting, ending)
    assert not found.uneven


def test_uneven_status() -> None:
    """One rank destroys the communicator, the others go on."""
    found = only(Comm((5, 5), status={1: {"destroy_flag": True}}))
    assert (found.uneven, found.ending) == (True, False)


def test_fingerprint() -> None:
    """It changes with every launch and with nothing else."""
    assert only(Comm((5, 6))).fingerprint == only(Comm((5, 6), name=9)).fingerprint
    assert only(Comm((5, 6))).fingerprint != only(Comm((6, 5))).fingerprint


def test_shared_hash() -> None:
    """The second hash tells them apart: NCCL does not guarantee that the first is unique."""
    report = parsed(json_status(Comm((1,)), Comm((1,), second="0x3:0x4"), Comm((1,), second="0x3:0x4")))
    assert [each.name for each in report.communicators] == ["27a079b828ff1a75/1:2", "27a079b828ff1a75/3:4"]


def test_largest_communicator() -> None:
    """Several of the same size must agree."""
    world, pair = Comm((1, 1, 1)), Comm((1, 1), name=2, places=(2, 0))
    assert list(parsed(json_status(pair, world)).largest.values()) == [0, 1, 2]
    assert parsed(json_status(world, Comm((1, 1, 1), name=3))).largest
    assert parsed(json_status(world, Comm((1, 1, 1), name=3, places=(2, 1, 0)))).largest == {}


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
def test_invalid_answers(body: bytes) -> None:
    """One clear error each."""
    with pytest.raises(CollectError, match="could not read the answer of NCCL RAS"):
        parsed(body)


def test_number_of_kinds_is_bounded() -> None:
    """Comparing all with all would never end."""
    ranks: list[dict[str, object]] = [
        {"rank": at, "host": "", "pid": at, "status": {"init_state": 0}, "collective_counts": {f"k{at}": 1}}
        for at in range(100)
    ]
    document = {"nccl_version": "2", "communicators": [{"hash": "0x1", "size": 100, "ranks": ranks}]}
    with pytest.raises(CollectError, match="too many kinds"):
        parsed(json.dumps(document).encode())


def test_number_of_objects_is_bounded() -> None:
    """They are refused before parsing, since they would take many times their size."""
    with pytest.raises(CollectError, match="more than 300000 objects"):
        parsed(b"{" * (MAX_OBJECTS + 1))


def test_thousand_ranks() -> None:
    """With a tensor-parallel communicator for each eight of them."""
    groups = [Comm((9,) * 8, name=index + 2) for index in range(128)]
    report = parsed(json_status(Comm((3,) * 1024, name=1), *groups))
    assert (len(report.communicators), len(report.pids), len(report.largest)) == (129, 1024, 1024)
