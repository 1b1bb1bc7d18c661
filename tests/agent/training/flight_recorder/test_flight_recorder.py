"""The flight recorder: asked over a real unix socket, decoded with suspicion, merged without doubles."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.training.collectives.collector import CollectivesCollector
from rankwatch_agent.training.collectives.totals import GroupKey, Position
from rankwatch_agent.training.flight_recorder.ask import (
    MAX_OBJECTS,
    MAX_REPLY_BYTES,
    FlightRecorderClient,
    FlightRecorderError,
)
from rankwatch_agent.training.flight_recorder.merge import MergedRecorder
from rankwatch_agent.training.flight_recorder.parse import Dump, DumpError, Entry, GroupStatus, parse_json
from support.agent.process import DEADLINE_SECONDS
from support.fuzzing import BUSY_MACHINE
from support.training.ranks import values
from support.training.recorder import worker_server

HANDLERS = b'["ping","fr_trace_json"]'


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 " + status.encode() + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def server(path: Path, *replies: bytes) -> Iterator[Path]:
    """A server on a unix socket that answers one connection after another with these bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            for reply in replies:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def pull(client: FlightRecorderClient) -> dict[str, Dump]:
    """Ask once, and parse what comes."""
    return {name: client.parse(body) for name, body in client.ask().items()}


def reply(first: int, last: int, *, enqueued: int = 5, completed: int = 4) -> Dump:
    entries = [
        Entry(record_id=each, pg_id=0, process_group=("0", "default_pg"), retired=True)
        for each in range(first, last)
    ]
    return Dump(entries=entries, pg_status={"0": GroupStatus(enqueued, completed)})


def test_entries_are_counted_once_over_overlapping_pulls() -> None:
    """Every reply holds the whole ring."""
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(reply(0, 10))
    recorder.merge(reply(5, 15))
    recorder.merge(reply(5, 15))
    assert (recorder.entries, recorder.missed) == (15, 0)
    assert recorder.positions == {GroupKey("default_pg", ""): Position(5, 4, None)}


def test_entries_that_were_overwritten_are_counted_as_missed() -> None:
    """Between two pulls more came than the ring holds."""
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(reply(0, 10))
    recorder.merge(reply(25, 30))
    assert (recorder.entries, recorder.missed) == (15, 15)


def test_a_new_process_begins_a_new_ring() -> None:
    """Its record ids start again at 0; that is no gap."""
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(reply(0, 100))
    recorder.merge(reply(0, 3))
    assert (recorder.entries, recorder.missed) == (103, 0)


def test_a_real_reply_of_torch_is_decoded() -> None:
    """Sequence numbers come as text."""
    body = {
        "entries": [{"record_id": 0, "pg_id": 0, "process_group": ["0", "mesh_tp"], "state": "scheduled"}],
        "pg_status": {"0": {"last_completed_collective": "5", "last_enqueued_collective": "6"}},
        "version": "2.10",
    }
    recorder = MergedRecorder(max_groups=8)
    recorder.merge(parse_json(json.dumps(body).encode()))
    assert recorder.positions == {GroupKey("mesh_tp", ""): Position(6, 5, None, crc32(b""))}


@BUSY_MACHINE
@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps({"entries": value, "pg_status": value}).encode()
    )
)
def test_whatever_a_socket_says_is_decoded_or_refused(body: bytes) -> None:
    """Nothing but the decoder's own error."""
    try:
        MergedRecorder(max_groups=8).merge(parse_json(body))
    except DumpError:
        return


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([b"garbage\r\n\r\n"], "could not ask"),
        ([b""], "could not ask"),
        ([http(b"no", "500 Internal Server Error")], "status 500"),
        ([http(b'["ping"]')], "no handler"),
        ([http(b'["\xff"]')], "could not read"),
        ([http(b'{"fr_trace_json": 1}')], "no handler"),
        ([http(HANDLERS), http(b"[" * 100_000)], "could not read"),
        ([http(HANDLERS), http(b'{"entries": [{"record_id": 1, "state": "\xff"}]}')], "could not read"),
        ([http(HANDLERS), http(b'{"version": "\xff"}')], "could not read"),
        ([http(HANDLERS), http(b"[]")], "could not read"),
        ([http(HANDLERS), http(b'{"entries": [{"record_id": "x"}]}')], "could not read"),
    ],
)
def test_an_odd_server_is_one_clear_error(tmp_path: Path, replies: list[bytes], message: str) -> None:
    """The message names the socket."""
    with (
        server(tmp_path / "0.sock", *replies) as path,
        pytest.raises(FlightRecorderError, match=message) as caught,
    ):
        pull(FlightRecorderClient(path))
    assert str(path) in str(caught.value)


def test_a_server_that_never_answers_costs_only_the_timeout(tmp_path: Path) -> None:
    """It accepts and says nothing."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "0.sock"))
        listening.listen()
        with pytest.raises(FlightRecorderError, match="timed out"):
            FlightRecorderClient(tmp_path / "0.sock", timeout_seconds=0.05).ask()


def test_a_server_that_drips_is_given_up_at_the_timeout(tmp_path: Path) -> None:
    """Each byte comes in time, the whole never does."""
    stop = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "0.sock"))
        listening.listen()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                while not stop.wait(0.02):
                    connection.sendall(b"H")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(FlightRecorderError, match="timed out"):
            FlightRecorderClient(tmp_path / "0.sock", timeout_seconds=0.2).ask()
        stop.set()
        thread.join()


def test_groups_that_were_destroyed_are_gone() -> None:
    """A run that makes a group a step does not fill the database."""
    recorder = MergedRecorder(max_groups=8)
    for number in range(100):
        names = (str(number), f"group{number}")
        group = Entry(record_id=number, pg_id=0, process_group=names, retired=True)
        recorder.merge(Dump(entries=[group], pg_status={"0": GroupStatus(1, 1)}))
    assert recorder.positions == {GroupKey("group99", ""): Position(1, 1, None)}


def test_no_socket_is_not_applicable(tmp_path: Path) -> None:
    """No failure: the run may not use torch."""
    with pytest.raises(NotApplicable):
        CollectivesCollector(directory=tmp_path).collect()


def test_a_dead_socket_is_counted_and_the_living_rank_is_exported(tmp_path: Path) -> None:
    """Series of one rank do not depend on another's."""
    dead = tmp_path / "job" / "1.sock"
    dead.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(dead))
    body = json.dumps(
        {
            "entries": [{"record_id": 7, "pg_id": 0, "process_group": ["0", "default_pg"]}],
            "pg_status": {"0": {"last_completed_collective": 6, "last_enqueued_collective": 7}},
        }
    ).encode()
    with server(tmp_path / "job" / "0.sock", http(HANDLERS), http(body)):
        collection = CollectivesCollector(directory=tmp_path).collect()
    assert values(collection, "rankwatch_flight_recorder_pulls_total") == {
        ("job", "0", "success"): 1.0,
        ("job", "0", "failure"): 0.0,
        ("job", "1", "success"): 0.0,
        ("job", "1", "failure"): 1.0,
    }
    place = ("job", "0", "default_pg", "", "flight_recorder")
    assert values(collection, "rankwatch_collective_last_enqueued") == {place: 7.0}
    assert values(collection, "rankwatch_collective_last_completed") == {place: 6.0}


def test_a_reply_of_endless_small_parts_is_refused_before_it_is_decoded() -> None:
    """In memory each takes twenty times its size: eight such ranks would take all that the agent may have."""
    endless = b",".join([b"[]"] * MAX_OBJECTS)
    body = bytearray(b'{"entries":[{"record_id":1,"input_sizes":[' + endless + b"]}]}")
    with pytest.raises(FlightRecorderError, match="more than 262144 objects"):
        FlightRecorderClient(Path("0.sock")).parse(body)


def test_both_recorders_of_a_rank_share_the_bytes_of_a_reply(tmp_path: Path) -> None:
    """The first takes them nearly all, so the second is too large."""
    long = {"fr_trace_json": "x" * (MAX_REPLY_BYTES - 100), "dump_nccl_trace_json": "y" * 20_000}
    with worker_server(tmp_path / "0.sock", lambda: long):
        with pytest.raises(FlightRecorderError, match="more than"):
            FlightRecorderClient(tmp_path / "0.sock", timeout_seconds=DEADLINE_SECONDS).ask()
        del long["dump_nccl_trace_json"]
        alone = FlightRecorderClient(tmp_path / "0.sock", timeout_seconds=DEADLINE_SECONDS).ask()
        assert len(alone["fr_trace_json"]) > 20 << 20
