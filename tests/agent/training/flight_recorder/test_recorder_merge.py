"""One pull after another: places, signatures, samples, restarts and gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.collectives.series import Position
from rankwatch_agent.training.collectives.totals import GroupKey
from rankwatch_agent.training.flight_recorder.merge import FlightRecorderAccount
from rankwatch_agent.training.flight_recorder.operations import signature
from rankwatch_agent.training.flight_recorder.reply import Entry, decode
from support.training.recorder import completed, entry, reply

DEFAULT = GroupKey("default_pg", "0-1")


def pull(
    account: FlightRecorderAccount, body: Mapping[str, Any], known: Iterable[GroupNow] = ()
) -> FlightRecorderAccount:
    account.merge(decode(json.dumps(body).encode()), known)
    return account


def totals(account: FlightRecorderAccount) -> dict[tuple[str, str, str], tuple[int, int, float]]:
    return {at: (each.count, each.bytes, each.seconds) for at, each in account.totals.items()}


def test_the_oldest_incomplete_collective_is_told_with_its_signature() -> None:
    """Unix time of its enqueue; members from the configuration of the group."""
    pending = entry(8, collective_seq_id=9)
    body = reply(completed(7), pending, entry(9, profiling_name="nccl:broadcast"), enqueued=10, done=8)
    account = pull(FlightRecorderAccount(8), body)
    sizes: dict[str, Any] = {each: pending[each] for each in ("input_sizes", "output_sizes")}
    sizes |= {each: pending[each] for each in ("input_dtypes", "output_dtypes")}
    expected = signature(Entry(record_id=8, profiling_name="nccl:all_reduce", **sizes))
    assert account.places == {DEFAULT: Position(10, 8, 1008.0, expected)}


def test_a_group_that_has_completed_all_has_no_oldest() -> None:
    """And no signature. Gloo's entries stay scheduled and are retired."""
    body = reply(entry(0, retired=True), enqueued=1, done=1)
    assert pull(FlightRecorderAccount(8), body).places == {DEFAULT: Position(1, 1, None)}


def test_before_the_first_collective_the_numbers_are_zero() -> None:
    """PyTorch says -1."""
    body = reply(entry(0), enqueued=1, done=-1)
    assert pull(FlightRecorderAccount(8), body).places[DEFAULT].completed == 0


def test_sends_and_receives_do_not_count_as_collectives() -> None:
    """The status of NCCL counts both, and stages of a pipeline differ in the first."""
    message: dict[str, object] = {"is_p2p": True, "profiling_name": "nccl:send 0->1"}
    body = reply(
        completed(0, collective_seq_id=26, **message),
        entry(1, collective_seq_id=26, **message),
        enqueued=11986,
        done=11983,
    )
    account = pull(FlightRecorderAccount(8), body)
    assert account.places == {DEFAULT: Position(26, 26, 1001.0)}
    pending = pull(account, reply(entry(2, collective_seq_id=27), enqueued=11987, done=11983)).places[DEFAULT]
    assert (pending.enqueued, pending.completed) == (27, 26)


def test_a_rank_that_waits_in_a_receive_waits_where_its_group_has_nothing_else() -> None:
    """As in a pipeline: the rules would name it else, for it waits in no collective. It has no number."""
    message: dict[str, object] = {"is_p2p": True, "profiling_name": "nccl:recv 0<-1", "collective_seq_id": 0}
    waits = reply(completed(0, **message), entry(1, **message), enqueued=2, done=1)
    assert pull(FlightRecorderAccount(8), waits).places == {DEFAULT: Position(None, None, 1001.0)}
    done = reply(completed(0, **message), completed(1, **message), enqueued=2, done=2)
    assert pull(FlightRecorderAccount(8), done).places == {}


def test_the_status_of_gloo_counts_messages_that_have_no_entry() -> None:
    """Torch 2.13: a rank that sent 40 times says 81 after 41 collectives. What is not known is not shown."""
    account = FlightRecorderAccount(8)
    pull(account, reply(completed(39), entry(40), enqueued=81, done=79))
    assert account.places[DEFAULT][:2] == (41, 40)
    other = completed(50, pg_id=1, process_group=["1", "cpu"], collective_seq_id=1)
    pull(account, reply(other, enqueued=85, done=85, more={"1": (1, 1)}))
    assert list(account.places) == [GroupKey("cpu", "")]


def test_a_group_is_known_after_its_entries_were_overwritten() -> None:
    """Only entries link a status to a name: the link is kept."""
    account = FlightRecorderAccount(8)
    pull(account, reply(completed(0, pg_id=3, process_group=["7", "mesh_tp"]), more={"3": (1, 1)}))
    pull(account, reply(completed(1), enqueued=2, done=2, more={"3": (5, 4), "4": (2, 2)}))
    assert account.places == {DEFAULT: Position(2, 2, None), GroupKey("mesh_tp", ""): Position(5, 4, None)}


def test_members_come_from_the_black_box_where_the_recorder_tells_none() -> None:
    """As gloo's, which writes an empty configuration; two groups of one label stay without."""
    body = {**reply(completed(0), enqueued=1, done=1), "pg_config": {"": {"ranks": "[]"}}}
    rows = [GroupNow(1, "default_pg", members, 2, 1, 0.0, "all_reduce") for members in ("0-1", "0-3")]
    assert list(pull(FlightRecorderAccount(8), body, rows[:1]).places) == [DEFAULT]
    assert list(pull(FlightRecorderAccount(8), body, rows).places) == [GroupKey("default_pg", "")]


def test_completed_collectives_are_sampled_once() -> None:
    """Also one that was still under way at the pull before."""
    account = FlightRecorderAccount(8)
    pull(account, reply(completed(0, 2.0), entry(1)))
    assert totals(account) == {(*DEFAULT, "all_reduce"): (1, 4096, 0.002)}
    for _ in range(2):
        pull(account, reply(completed(0, 2.0), completed(1, 6.0), completed(2, 4.0)))
    assert totals(account) == {(*DEFAULT, "all_reduce"): (3, 3 * 4096, pytest.approx(0.012))}
    (ledger,) = account.ledgers
    assert sorted(ledger.finished) == [1, 2, 3]


def test_what_the_black_box_counts_is_not_sampled() -> None:
    """Gloo's completions are all recorded there."""
    body = reply(completed(0, profiling_name="gloo:all_reduce"), enqueued=1, done=1)
    assert not pull(FlightRecorderAccount(8), body).totals


def test_without_timing_there_is_no_time() -> None:
    """An unknown time is no time of zero."""
    account = pull(FlightRecorderAccount(8), reply(completed(0), completed(1)))
    (found,) = account.totals.values()
    assert (found.count, found.timed, list(account.ledgers)) == (2, False, [])


def test_a_new_process_whose_ring_is_longer_than_the_old_one_is_recognised() -> None:
    """It has come further than the last record id that was read: the same ids are other entries."""
    account = pull(FlightRecorderAccount(8), reply(*(completed(each, 1.0) for each in range(3))))
    anew = [completed(each, 1.0, time_created_ns=5_000_000_000_000 + each) for each in range(10)]
    pull(account, reply(*anew))
    assert (account.entries, account.missed) == (13, 0)
    assert totals(account)[*DEFAULT, "all_reduce"][0] == 13


def test_a_gap_wider_than_the_ring_is_counted() -> None:
    """And the entries on its other side are new."""
    account = pull(FlightRecorderAccount(8), reply(completed(0, 1.0), completed(1, 1.0)))
    pull(account, reply(completed(10, 1.0), completed(11, 1.0)))
    assert (account.entries, account.missed) == (4, 8)


def test_nccl_and_gloo_entries_of_one_recorder_are_told_apart() -> None:
    """Each belongs to its own group."""
    gloo = completed(
        1, collective_seq_id=1, pg_id=1, process_group=["1", "cpu"], profiling_name="gloo:all_reduce"
    )
    account = pull(
        FlightRecorderAccount(8), reply(completed(0), gloo, enqueued=1, done=1, more={"1": (1, 1)})
    )
    assert set(account.places) == {DEFAULT, GroupKey("cpu", "")}
    assert set(account.totals) == {(*DEFAULT, "all_reduce")}


def test_a_hostile_recorder_is_bounded() -> None:
    """Groups, operations, ranks and times that nobody has."""
    account = FlightRecorderAccount(8)
    entries = [
        completed(
            each,
            -1e300 if each % 2 else 1e300,
            pg_id=each,
            process_group=[str(each), "x" * each],
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
    pull(account, body)
    assert len(account.places) <= 8
    assert len(account.totals) <= 9
    assert all(0.0 <= each.seconds < 1e10 for each in account.totals.values())
