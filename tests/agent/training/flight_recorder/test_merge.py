"""One dump of a recorder after another: positions, signatures, samples, restarts and gaps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given

from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.collectives.comparison import RunComparison
from rankwatch_agent.training.collectives.totals import GroupKey, Position, totals_series
from rankwatch_agent.training.flight_recorder.ask import parse_reply
from rankwatch_agent.training.flight_recorder.merge import MergedRecorder
from rankwatch_agent.training.flight_recorder.operations import signature
from rankwatch_agent.training.flight_recorder.parse import Dump, DumpError, Entry, parse_json
from support.fuzzing import BUSY_MACHINE
from support.training.recorder import ANY_REPLY, completed, entry, reply

DEFAULT = GroupKey("default_pg", "0-1")


def counted(recorder: MergedRecorder) -> int:
    """Operations that have completed."""
    return sum(each.count for each in recorder.totals.values())


def pull(recorder: MergedRecorder, body: Mapping[str, Any], known: Iterable[GroupNow] = ()) -> MergedRecorder:
    recorder.merge(parse_json(json.dumps(body).encode()), known)
    return recorder


def totals(recorder: MergedRecorder) -> dict[tuple[str, str, str], tuple[int, int, float]]:
    return {at: (each.count, each.bytes, each.seconds) for at, each in recorder.totals.items()}


BATCH: dict[str, object] = {"collective_seq_id": 26, "p2p_seq_id": 7, "op_id": 34}
END: dict[str, object] = {
    **BATCH,
    "profiling_name": "nccl:coalesced",
    **{each: [] for each in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")},
}
"""ProcessGroupNCCL.cpp, `endCoalescing`: the numbers of the last part, no tensors, `is_p2p` false."""


def batch(first: int) -> list[dict[str, object]]:
    """The parts, as `pointToPoint` records them: they stay so for ever."""
    names = ("nccl:send 0->1", "nccl:recv 0<-1")
    return [entry(first + each, **BATCH, is_p2p=True, profiling_name=name) for each, name in enumerate(names)]


TENSORS: dict[str, Any] = {
    each: entry(0)[each] for each in ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
}
ALL_REDUCE = signature(Entry(record_id=8, profiling_name="nccl:all_reduce", **TENSORS))
BEFORE = completed(10, collective_seq_id=26)
SEND: dict[str, object] = {"is_p2p": True, "profiling_name": "nccl:send 0->1", "collective_seq_id": 26}
SENDS = reply(completed(0, **SEND), entry(1, **SEND), enqueued=11986, done=11983)
RECEIVE: dict[str, object] = {"is_p2p": True, "profiling_name": "nccl:recv 0<-1", "collective_seq_id": 0}
CPU = completed(50, pg_id=1, process_group=["1", "cpu"], collective_seq_id=1)
GLOO = reply(completed(39), entry(40), enqueued=81, done=79)
TENSOR_GROUP = completed(0, pg_id=3, process_group=["7", "mesh_tp"])
REAL = {
    "entries": [{"record_id": 0, "pg_id": 0, "process_group": ["0", "mesh_tp"], "state": "scheduled"}],
    "pg_status": {"0": {"last_completed_collective": "5", "last_enqueued_collective": "6"}},
    "version": "2.10",
}


@pytest.mark.parametrize(
    ("bodies", "positions"),
    [
        (
            [reply(completed(7), entry(8), entry(9, profiling_name="nccl:broadcast"), enqueued=10, done=8)],
            {DEFAULT: Position(10, 8, 1008.0, ALL_REDUCE)},
        ),
        (
            [reply(entry(0, retired=True, profiling_name="gloo:all_reduce"), enqueued=1, done=1)],
            {DEFAULT: Position(1, 1, None)},
        ),
        ([reply(entry(0), enqueued=1, done=-1)], {DEFAULT: Position(1, 0, 1000.0, ALL_REDUCE)}),
        ([SENDS], {DEFAULT: Position(26, 26, 1001.0)}),
        (
            [SENDS, reply(entry(2, collective_seq_id=27), enqueued=11987, done=11983)],
            {DEFAULT: Position(27, 26, 1002.0, ALL_REDUCE)},
        ),
        (
            [reply(BEFORE, *batch(11), completed(13, **END), enqueued=7, done=7)],
            {DEFAULT: Position(26, 26, None)},
        ),
        (
            [reply(BEFORE, *batch(11), entry(13, **END), enqueued=7, done=6)],
            {DEFAULT: Position(26, 26, 1013.0)},
        ),
        ([reply(BEFORE, *batch(11), enqueued=6, done=6)], {DEFAULT: Position(26, 26, None)}),
        (
            [reply(completed(0), entry(1, retired=True), enqueued=2, done=1)],
            {DEFAULT: Position(2, 1, 1001.0, ALL_REDUCE)},
        ),
        (
            [reply(completed(0, **RECEIVE), entry(1, **RECEIVE), enqueued=2, done=1)],
            {DEFAULT: Position(None, None, 1001.0)},
        ),
        ([reply(completed(0, **RECEIVE), completed(1, **RECEIVE), enqueued=2, done=2)], {}),
        ([GLOO], {DEFAULT: Position(41, 40, 1040.0, ALL_REDUCE)}),
        (
            [GLOO, reply(CPU, enqueued=85, done=85, more={"1": (1, 1)})],
            {GroupKey("cpu", ""): Position(1, 1, None)},
        ),
        (
            [
                reply(TENSOR_GROUP, more={"3": (1, 1)}),
                reply(completed(1), enqueued=2, done=2, more={"3": (5, 4), "4": (2, 2)}),
            ],
            {DEFAULT: Position(2, 2, None), GroupKey("mesh_tp", ""): Position(5, 4, None)},
        ),
        ([REAL], {GroupKey("mesh_tp", ""): Position(6, 5, None, crc32(b""))}),
    ],
    ids=[
        "the oldest that is incomplete, with its enqueue in Unix time and its signature",
        "a group that has completed all has none; gloo's entries stay scheduled and are retired",
        "before the first collective PyTorch writes -1",
        "the status of NCCL counts messages too, in which stages of a pipeline differ: they are none",
        "a collective after messages has its own number",
        "parts of a completed batch have no state, and the entry that closes it is no collective",
        "a pending batch is the oldest, and its number is no collective that is pending",
        "parts that nothing closes are not launched, or were closed by what is left out: neither waits",
        "what the watchdog of NCCL gave up is retired, and still the oldest",
        "who waits in a receive is waiting; without a position the rules would name the rank",
        "a group of messages alone that are all done has no position",
        "the status of gloo counts messages that have no entry: 40 sends and 41 collectives are 81",
        "what is unknown is not exported",
        "only entries link a status to a name: the link outlives them",
        "torch writes numbers as text",
    ],
)
def test_positions(bodies: list[Mapping[str, Any]], positions: Mapping[GroupKey, Position]) -> None:
    """What is exported of groups after these pulls; members come from the group's configuration."""
    recorder = MergedRecorder(8)
    for body in bodies:
        pull(recorder, body)
    assert recorder.positions == positions


@pytest.mark.parametrize("timed", [False, True])
def test_batch_counts_once(timed: bool) -> None:
    """A batch is one operation with the time of its end and the bytes of its parts; it is no collective."""
    before = completed(10, 4.0 if timed else None, collective_seq_id=26)
    end = completed(13, 2.0 if timed else None, **END)
    recorder = pull(MergedRecorder(8), reply(before, *batch(11), end))
    assert totals(recorder) == {
        (*DEFAULT, "all_reduce"): (1, 4096, 0.004 * timed),
        (*DEFAULT, "send_recv"): (1, 2 * 4096, 0.002 * timed),
    }
    assert [list(group.completed) for group in recorder.groups] == ([[26]] if timed else [])


UNEVEN = {"collective_seq_id": 5, "p2p_seq_id": 0}


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(
    ("operation", "part", "elements"),
    [("ALLGATHER", "_broadcast_oop", 1005), ("REDUCE_SCATTER", "_reduce_oop", 2010)],
)
def test_uneven_collective(operation: str, part: str, elements: int, done: bool) -> None:
    """The entry that closes it is the collective; its parts are nothing but its bytes. Each rank counts the
    mean of what is gathered, so all of them count all of it. Of a reduce_scatter it has an input for each
    rank, which all count."""
    parts = [
        entry(each, **UNEVEN, profiling_name=f"nccl:{part}", input_sizes=[[1000 + 10 * each]])
        for each in range(2)
    ]
    end = {**END, **UNEVEN, "profiling_name": f"nccl:{operation}_coalesced"}
    last = completed(2, 3.0, **end) if done else entry(2, **end)
    recorder = pull(MergedRecorder(8), reply(*parts, last, enqueued=5, done=4 + done))
    position = recorder.positions[DEFAULT]
    assert position[:3] == (5, 4 + done, None if done else 1002.0)
    name = operation.lower().replace("allgather", "all_gather")
    assert totals(recorder) == ({(*DEFAULT, name): (1, 4 * elements, 0.003)} if done else {})


def test_lost_parts() -> None:
    """An uneven collective whose parts were overwritten is not counted, as others that were overwritten."""
    end = {**END, **UNEVEN, "profiling_name": "nccl:ALLGATHER_coalesced"}
    body = reply(completed(7, 3.0, **end), completed(8, 1.0, collective_seq_id=6), enqueued=6, done=6)
    recorder = pull(MergedRecorder(8), body)
    assert totals(recorder) == {(*DEFAULT, "all_reduce"): (1, 4096, 0.001)}


def test_unknown_bytes() -> None:
    """An operation with one collective of unknown bytes has no series of bytes, and none by size."""
    lost = {"collective_seq_id": 5, "profiling_name": "nccl:all_gather", "input_dtypes": ["Other"]}
    body = reply(
        completed(7, 1.0, collective_seq_id=4, profiling_name="nccl:all_gather"),
        completed(8, 3.0, **lost),
        enqueued=5,
        done=5,
    )
    ranks = [pull(MergedRecorder(8), body) for _ in range(2)]
    found = {each.metric.name for each in totals_series(("run", "0"), ranks[0].totals)}
    assert found == {"rankwatch_collectives_total", "rankwatch_collective_seconds_total"}
    rendezvous = RunComparison()
    rendezvous.compare([each.groups for each in ranks])
    assert [each.wait_seconds for each in ranks[0].totals.values()] == [0.0]
    assert [each.count for each in rendezvous.transfers.values()] == [1]


def test_members_from_the_black_box() -> None:
    """Gloo's recorder writes an empty configuration; two groups of one label stay without members."""
    body = {**reply(completed(0), enqueued=1, done=1), "pg_config": {"": {"ranks": "[]"}}}
    rows = [GroupNow(1, "default_pg", members, 2, 1, 0.0, "all_reduce") for members in ("0-1", "0-3")]
    assert list(pull(MergedRecorder(8), body, rows[:1]).positions) == [DEFAULT]
    assert list(pull(MergedRecorder(8), body, rows).positions) == [GroupKey("default_pg", "")]


def test_samples_count_once() -> None:
    """Completed collectives are sampled once, also one that was still pending at the pull before."""
    recorder = pull(MergedRecorder(8), reply(completed(0, 2.0), entry(1)))
    assert totals(recorder) == {(*DEFAULT, "all_reduce"): (1, 4096, 0.002)}
    for _ in range(2):
        pull(recorder, reply(completed(0, 2.0), completed(1, 6.0), completed(2, 4.0)))
    assert totals(recorder) == {(*DEFAULT, "all_reduce"): (3, 3 * 4096, pytest.approx(0.012))}
    (group,) = recorder.groups
    assert sorted(group.completed) == [1, 2, 3]


def test_gloo_is_not_sampled() -> None:
    """Gloo's completions are all recorded in the black box."""
    body = reply(completed(0, profiling_name="gloo:all_reduce"), enqueued=1, done=1)
    assert not pull(MergedRecorder(8), body).totals


def test_no_time_without_timing() -> None:
    """Without timing there is no time. An unknown time is no time of zero."""
    recorder = pull(MergedRecorder(8), reply(completed(0), completed(1)))
    (found,) = recorder.totals.values()
    assert (found.count, found.timed, list(recorder.groups)) == (2, False, [])


def ring(first: int, last: int, *, began: int = 0) -> dict[str, Any]:
    """What a recorder holds, in a process that began at this moment (ns)."""
    return reply(*(completed(each, 1.0, time_created_ns=began + each) for each in range(first, last)))


@pytest.mark.parametrize(
    ("pulls", "count", "missed"),
    [
        ([ring(0, 10), ring(5, 15), ring(5, 15)], 15, 0),
        ([ring(0, 2), ring(10, 12)], 4, 8),
        ([ring(0, 100), ring(0, 3, began=5000)], 103, 0),
        ([ring(0, 3), ring(0, 10, began=5000)], 13, 0),
    ],
    ids=[
        "every reply holds the whole ring: entries count once",
        "a gap between two pulls is missed, and what lies behind it is new",
        "record ids of a new process start again at 0: that is no gap",
        "a new process may have come further than the last record id: the same ids are other entries",
    ],
)
def test_pulls(pulls: list[dict[str, Any]], count: int, missed: int) -> None:
    """Each entry counts once, and what was overwritten between two pulls as missed."""
    recorder = MergedRecorder(8)
    for body in pulls:
        pull(recorder, body)
    assert (counted(recorder), recorder.missed) == (count, missed)


def test_completed_entries_that_are_left_out() -> None:
    """Nothing is missed where the handler shows active entries alone: the others have completed."""
    recorder = MergedRecorder(8, only_active=True)
    pull(recorder, reply(entry(0), entry(1)))
    pull(recorder, reply(entry(10), entry(11)))
    assert recorder.missed == 0


def test_odd_entry_is_missed_once() -> None:
    """One that is not understood is in the ring at each pull, and costs no other entry."""
    recorder = MergedRecorder(8)
    body = reply(completed(0, 1.0), entry(1, state=["x"]), completed(2, 1.0))
    for _ in range(2):
        pull(recorder, body)
    assert (counted(recorder), recorder.missed) == (2, 1)


def test_older_format() -> None:
    """It calls the number of a collective `seq_id`, and does not mark sends and receives."""
    entries = [completed(0, 1.0), entry(1, profiling_name="nccl:recv 0<-1"), entry(2)]
    for each in entries:
        each["seq_id"] = each.pop("collective_seq_id")
        del each["is_p2p"]
    recorder = pull(MergedRecorder(8), reply(*entries, enqueued=3, done=1))
    assert recorder.positions[DEFAULT][:2] == (3, 2)
    (group,) = recorder.groups
    assert list(group.completed) == [1]


def test_nccl_beside_gloo() -> None:
    """Entries of NCCL and Gloo in one recorder are kept apart. Each belongs to its own group."""
    gloo = completed(
        1, collective_seq_id=1, pg_id=1, process_group=["1", "cpu"], profiling_name="gloo:all_reduce"
    )
    recorder = pull(MergedRecorder(8), reply(completed(0), gloo, enqueued=1, done=1, more={"1": (1, 1)}))
    assert set(recorder.positions) == {DEFAULT, GroupKey("cpu", "")}
    assert set(recorder.totals) == {(*DEFAULT, "all_reduce")}


def test_hostile_recorder_is_bounded() -> None:
    """It sends groups, operations, ranks and times that nobody has."""
    entries = [
        completed(
            each,
            -1e300 if each % 2 else 1e300,
            pg_id=each,
            process_group=[str(each), "x" * each * 100],
            profiling_name=f"nccl:{each}",
        )
        for each in range(500)
    ]
    statuses = {str(each): (each, each) for each in range(500)}
    statuses |= dict.fromkeys(("-1", "²", "9" * 99), (1, 1))
    body = reply(*entries, completed(600, 1.0), ranks="[" + "7, " * 100_000 + "]", more=statuses)
    recorder = pull(MergedRecorder(8), body)
    assert len(recorder.positions) <= 8
    assert len(recorder.totals) <= 9
    assert {len(name) for _, name in recorder._groups._linked.values()} == {256}
    assert all(0.0 <= each.seconds < 1e10 for each in recorder.totals.values())


@pytest.mark.parametrize("parse", [parse_json, parse_reply])
@BUSY_MACHINE
@given(body=ANY_REPLY)
def test_any_reply_is_merged_or_refused(parse: Callable[[bytes], Dump], body: bytes) -> None:
    """No other error than one comes out of a hostile reply."""
    with suppress(DumpError):
        MergedRecorder(max_groups=8).merge(parse(body))


def test_destroyed_groups_are_gone() -> None:
    """A run that makes a group a step does not fill the database."""
    recorder = MergedRecorder(max_groups=8)
    for number in range(100):
        group = completed(number, process_group=[str(number), f"group{number}"])
        pull(recorder, {**reply(group, enqueued=1, done=1), "pg_config": {}})
    assert list(recorder.positions) == [GroupKey("group99", "")]
