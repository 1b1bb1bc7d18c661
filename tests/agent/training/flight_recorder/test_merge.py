"""One dump of a recorder after another: positions, signatures, samples, restarts and gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given

from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.collectives.comparison import RunComparison
from rankwatch_agent.training.collectives.totals import GroupKey, Position, totals_series
from rankwatch_agent.training.flight_recorder.merge import MergedRecorder
from rankwatch_agent.training.flight_recorder.operations import signature
from rankwatch_agent.training.flight_recorder.parse import Dump, DumpError, Entry, GroupStatus, parse_json
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


def test_oldest_incomplete_collective() -> None:
    """The oldest incomplete collective is exported with its signature. Its enqueue in Unix time and its
    signature are exported; members come from the group's configuration."""
    pending = entry(8, collective_seq_id=9)
    body = reply(completed(7), pending, entry(9, profiling_name="nccl:broadcast"), enqueued=10, done=8)
    recorder = pull(MergedRecorder(8), body)
    sizes: dict[str, Any] = {each: pending[each] for each in ("input_sizes", "output_sizes")}
    sizes |= {each: pending[each] for each in ("input_dtypes", "output_dtypes")}
    expected = signature(Entry(record_id=8, profiling_name="nccl:all_reduce", **sizes))
    assert recorder.positions == {DEFAULT: Position(10, 8, 1008.0, expected)}


def test_completed_group_has_no_oldest() -> None:
    """A group that has completed all has no oldest. It has no signature either. Gloo's entries stay scheduled
    and are retired."""
    body = reply(entry(0, retired=True, profiling_name="gloo:all_reduce"), enqueued=1, done=1)
    assert pull(MergedRecorder(8), body).positions == {DEFAULT: Position(1, 1, None)}


def test_numbers_before_the_first_collective() -> None:
    """Before the first collective the numbers are zero. PyTorch writes -1."""
    body = reply(entry(0), enqueued=1, done=-1)
    assert pull(MergedRecorder(8), body).positions[DEFAULT].completed == 0


def test_messages_are_no_collectives() -> None:
    """Sends and receives do not count as collectives. The status of NCCL counts both, and stages of a
    pipeline differ in the first."""
    message: dict[str, object] = {"is_p2p": True, "profiling_name": "nccl:send 0->1"}
    body = reply(
        completed(0, collective_seq_id=26, **message),
        entry(1, collective_seq_id=26, **message),
        enqueued=11986,
        done=11983,
    )
    recorder = pull(MergedRecorder(8), body)
    assert recorder.positions == {DEFAULT: Position(26, 26, 1001.0)}
    pending = pull(recorder, reply(entry(2, collective_seq_id=27), enqueued=11987, done=11983)).positions[
        DEFAULT
    ]
    assert (pending.enqueued, pending.completed) == (27, 26)


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


def test_completed_batch_is_nothing_pending() -> None:
    """Parts of a completed batch have no state and are no oldest entry. The entry that closes it has the
    number of the last collective and is none."""
    before = completed(10, collective_seq_id=26)
    body = reply(before, *batch(11), completed(13, **END), enqueued=7, done=7)
    assert pull(MergedRecorder(8), body).positions == {DEFAULT: Position(26, 26, None)}


def test_pending_batch() -> None:
    """A pending batch is the oldest entry, and its number is no collective that is pending."""
    before = completed(10, collective_seq_id=26)
    body = reply(before, *batch(11), entry(13, **END), enqueued=7, done=6)
    assert pull(MergedRecorder(8), body).positions == {DEFAULT: Position(26, 26, 1013.0)}


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
    """If the bytes of one collective are not known, its operation has no series of bytes, and no transfers
    by size. Its time and its wait are known."""
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


def test_parts_without_an_end() -> None:
    """Parts that nothing closes are not launched, or were closed by what is left out: neither waits."""
    body = reply(completed(10, collective_seq_id=26), *batch(11), enqueued=6, done=6)
    assert pull(MergedRecorder(8), body).positions == {DEFAULT: Position(26, 26, None)}


def test_given_up_by_the_watchdog() -> None:
    """A collective that NCCL's watchdog gave up is retired, and still the oldest."""
    body = reply(completed(0), entry(1, retired=True), enqueued=2, done=1)
    assert pull(MergedRecorder(8), body).positions[DEFAULT][:3] == (2, 1, 1001.0)


def test_waiting_receive_has_no_number() -> None:
    """A rank that waits in a receive is exported as waiting where its group has nothing else. As in a
    pipeline. Without a position the rules would name the rank, because it waits in no collective."""
    message: dict[str, object] = {"is_p2p": True, "profiling_name": "nccl:recv 0<-1", "collective_seq_id": 0}
    waits = reply(completed(0, **message), entry(1, **message), enqueued=2, done=1)
    assert pull(MergedRecorder(8), waits).positions == {DEFAULT: Position(None, None, 1001.0)}
    done = reply(completed(0, **message), completed(1, **message), enqueued=2, done=2)
    assert pull(MergedRecorder(8), done).positions == {}


def test_gloo_status_counts_messages() -> None:
    """The status of Gloo counts messages that have no entry. In torch 2.13 a rank that sent 40 times writes
    81 after 41 collectives. What is unknown is not exported."""
    recorder = MergedRecorder(8)
    pull(recorder, reply(completed(39), entry(40), enqueued=81, done=79))
    assert recorder.positions[DEFAULT][:2] == (41, 40)
    other = completed(50, pg_id=1, process_group=["1", "cpu"], collective_seq_id=1)
    pull(recorder, reply(other, enqueued=85, done=85, more={"1": (1, 1)}))
    assert list(recorder.positions) == [GroupKey("cpu", "")]


def test_group_outlives_its_entries() -> None:
    """A group is known after its entries were overwritten. Only entries link a status to a name: the link is
    kept."""
    recorder = MergedRecorder(8)
    pull(recorder, reply(completed(0, pg_id=3, process_group=["7", "mesh_tp"]), more={"3": (1, 1)}))
    pull(recorder, reply(completed(1), enqueued=2, done=2, more={"3": (5, 4), "4": (2, 2)}))
    assert recorder.positions == {
        DEFAULT: Position(2, 2, None),
        GroupKey("mesh_tp", ""): Position(5, 4, None),
    }


def test_members_from_the_black_box() -> None:
    """Members come from the black box where the recorder has none. Gloo's recorder writes an empty
    configuration; two groups of one label stay without members."""
    body = {**reply(completed(0), enqueued=1, done=1), "pg_config": {"": {"ranks": "[]"}}}
    rows = [GroupNow(1, "default_pg", members, 2, 1, 0.0, "all_reduce") for members in ("0-1", "0-3")]
    assert list(pull(MergedRecorder(8), body, rows[:1]).positions) == [DEFAULT]
    assert list(pull(MergedRecorder(8), body, rows).positions) == [GroupKey("default_pg", "")]


def test_samples_count_once() -> None:
    """Completed collectives are sampled once. This includes one that was still pending at the pull before."""
    recorder = MergedRecorder(8)
    pull(recorder, reply(completed(0, 2.0), entry(1)))
    assert totals(recorder) == {(*DEFAULT, "all_reduce"): (1, 4096, 0.002)}
    for _ in range(2):
        pull(recorder, reply(completed(0, 2.0), completed(1, 6.0), completed(2, 4.0)))
    assert totals(recorder) == {(*DEFAULT, "all_reduce"): (3, 3 * 4096, pytest.approx(0.012))}
    (group,) = recorder.groups
    assert sorted(group.completed) == [1, 2, 3]


def test_gloo_is_not_sampled() -> None:
    """What the black box counts is not sampled. Gloo's completions are all recorded there."""
    body = reply(completed(0, profiling_name="gloo:all_reduce"), enqueued=1, done=1)
    assert not pull(MergedRecorder(8), body).totals


def test_no_time_without_timing() -> None:
    """Without timing there is no time. An unknown time is no time of zero."""
    recorder = pull(MergedRecorder(8), reply(completed(0), completed(1)))
    (found,) = recorder.totals.values()
    assert (found.count, found.timed, list(recorder.groups)) == (2, False, [])


def test_new_process_with_a_longer_ring() -> None:
    """A new process whose ring is longer than the old one is recognised. It has come further than the last
    record id that was read: the same ids are other entries."""
    recorder = pull(MergedRecorder(8), reply(*(completed(each, 1.0) for each in range(3))))
    anew = [completed(each, 1.0, time_created_ns=5_000_000_000_000 + each) for each in range(10)]
    pull(recorder, reply(*anew))
    assert recorder.missed == 0
    assert totals(recorder)[*DEFAULT, "all_reduce"][0] == 13


def test_gap_is_counted() -> None:
    """A gap wider than the ring is counted. The entries on its other side are new."""
    recorder = pull(MergedRecorder(8), reply(completed(0, 1.0), completed(1, 1.0)))
    pull(recorder, reply(completed(10, 1.0), completed(11, 1.0)))
    assert (counted(recorder), recorder.missed) == (4, 8)


def test_completed_entries_that_are_left_out() -> None:
    """Nothing is missed where the handler shows active entries alone: the others have completed."""
    recorder = MergedRecorder(8, only_active=True)
    pull(recorder, reply(entry(0), entry(1)))
    pull(recorder, reply(entry(10), entry(11)))
    assert recorder.missed == 0


def test_odd_entry_is_missed_once() -> None:
    """An entry that is not understood counts as missed once. It is in the ring at each pull, and costs no
    other entry."""
    recorder = MergedRecorder(8)
    body = reply(completed(0, 1.0), entry(1, state=["x"]), completed(2, 1.0))
    for _ in range(2):
        pull(recorder, body)
    assert (counted(recorder), recorder.missed) == (2, 1)


def test_older_format() -> None:
    """A recorder of an older format is merged. It calls the number of a collective `seq_id`, and does not
    mark sends and receives."""
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
    """A hostile recorder is bounded. It sends groups, operations, ranks and times that nobody has."""
    recorder = MergedRecorder(8)
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
    statuses = {str(each): (each, each) for each in range(500)} | {
        "-1": (1, 1),
        "²": (1, 1),
        "9" * 99: (1, 1),
    }
    body = reply(*entries, completed(600, 1.0), ranks="[" + "7, " * 100_000 + "]", more=statuses)
    pull(recorder, body)
    assert len(recorder.positions) <= 8
    assert len(recorder.totals) <= 9
    assert {len(name) for _, name in recorder._groups._linked.values()} == {256}
    assert all(0.0 <= each.seconds < 1e10 for each in recorder.totals.values())


def ring(first: int, last: int, *, enqueued: int = 5, completed: int = 4) -> Dump:
    entries = [
        Entry(record_id=each, pg_id=0, process_group=("0", "default_pg"), retired=True)
        for each in range(first, last)
    ]
    return Dump(entries=entries, pg_status={"0": GroupStatus(enqueued, completed)})


def test_overlapping_pulls() -> None:
    """Entries are counted once over overlapping pulls. Every reply holds the whole ring."""
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(ring(0, 10))
    recorder.merge(ring(5, 15))
    recorder.merge(ring(5, 15))
    assert (counted(recorder), recorder.missed) == (15, 0)
    assert recorder.positions == {GroupKey("default_pg", ""): Position(5, 4, None)}


def test_overwritten_entries_are_missed() -> None:
    """Entries that were overwritten are counted as missed. Between two pulls more came than the ring
    holds."""
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(ring(0, 10))
    recorder.merge(ring(25, 30))
    assert (counted(recorder), recorder.missed) == (15, 15)


def test_new_process() -> None:
    """A new process begins a new ring. Its record ids start again at 0; that is no gap."""
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(ring(0, 100))
    recorder.merge(ring(0, 3))
    assert (counted(recorder), recorder.missed) == (103, 0)


def test_real_reply() -> None:
    """A real reply of torch is decoded. Sequence numbers come as text."""
    body = {
        "entries": [{"record_id": 0, "pg_id": 0, "process_group": ["0", "mesh_tp"], "state": "scheduled"}],
        "pg_status": {"0": {"last_completed_collective": "5", "last_enqueued_collective": "6"}},
        "version": "2.10",
    }
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(parse_json(json.dumps(body).encode()))
    assert recorder.positions == {GroupKey("mesh_tp", ""): Position(6, 5, None, crc32(b""))}


@BUSY_MACHINE
@given(ANY_REPLY)
def test_any_reply_is_merged_or_refused(body: bytes) -> None:
    """Any reply is merged or refused with one error. No other error comes out of a hostile reply."""
    with suppress(DumpError):
        MergedRecorder(max_groups=8).merge(parse_json(body))


def test_destroyed_groups_are_gone() -> None:
    """Groups that were destroyed are gone. A run that makes a group a step does not fill the database."""
    recorder = MergedRecorder(max_groups=8)
    for number in range(100):
        names = (str(number), f"group{number}")
        group = Entry(record_id=number, pg_id=0, process_group=names, retired=True)
        recorder.merge(Dump(entries=[group], pg_status={"0": GroupStatus(1, 1)}))
    assert recorder.positions == {GroupKey("group99", ""): Position(1, 1, None)}
