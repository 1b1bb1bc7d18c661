"""Worker servers of ranks, over real unix sockets: honest, slow, dead and hostile ones."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.training.collectives.collector import CollectivesCollector, RecordedRank
from rankwatch_agent.training.flight_recorder import parse
from rankwatch_agent.training.flight_recorder.ask import (
    MAX_OBJECTS,
    MAX_REPLY_BYTES,
    MAX_VALUES,
    CapturingRankError,
    FlightRecorderClient,
    FlightRecorderError,
    SilentRankError,
    ask_all,
    find_silent,
    main_recorder,
    parse_reply,
)
from rankwatch_agent.training.flight_recorder.parse import Dump, DumpError
from support.agent.process import DEADLINE_SECONDS
from support.servers.loopback import listening_at
from support.training.ranks import values
from support.training.recorder import answering, entry, reply, worker_server

HANDLERS = b'["ping","fr_trace_json"]'


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 " + status.encode() + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def server(path: Path, *replies: bytes) -> Iterator[Path]:
    """A server on a unix socket that answers one connection after another with these bytes."""
    left = iter(replies)

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(next(left))

    with answering(path, answer):
        yield path


def client(path: Path, timeout_seconds: float = DEADLINE_SECONDS) -> FlightRecorderClient:
    return FlightRecorderClient(path, os.geteuid(), timeout_seconds=timeout_seconds)


def pull(asking: FlightRecorderClient) -> dict[str, Dump]:
    """Ask once, and parse what comes."""
    return {name: asking.parse(body) for name, body in asking.ask().items()}


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([b"garbage\r\n\r\n"], "could not ask"),
        ([b""], "could not ask"),
        ([http(b"no", "500 Internal Server Error")], "status 500"),
        ([http(b'["ping"]')], "no handler"),
        ([http(b'["\xff"]')], "no handler"),
        ([http(b'{"fr_trace_json": 1}')], "no handler"),
        ([http(HANDLERS), http(b"[" * 100_000)], "could not read"),
        ([http(HANDLERS), http(b'{"entries": [{"record_id": "\xff", "state": ""}]}')], "could not read"),
        ([http(HANDLERS), http(b'{"version": "\xff"')], "could not read"),
        ([http(HANDLERS), http(b"[]")], "could not read"),
        ([http(HANDLERS), http(b'{"entries": [{"record_id": "x"}]}')], "could not read"),
    ],
)
def test_odd_server_is_one_error(tmp_path: Path, replies: list[bytes], message: str) -> None:
    """The message names the socket."""
    with (
        server(tmp_path / "0.sock", *replies) as path,
        pytest.raises(FlightRecorderError, match=message) as caught,
    ):
        pull(client(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("said", [b"", b"H"], ids=["silent", "each byte comes in time, the whole never does"])
def test_server_that_takes_too_long(tmp_path: Path, said: bytes) -> None:
    """A server that accepts the connection and comes to no end costs only the timeout."""

    def drip(connection: socket.socket) -> None:
        for _ in range(100):
            connection.sendall(said)
            time.sleep(0.02)

    with (
        answering(tmp_path / "0.sock", drip),
        pytest.raises(FlightRecorderError, match="timed out"),
    ):
        client(tmp_path / "0.sock", 0.2).ask()


def test_no_socket(tmp_path: Path) -> None:
    """It is no failure: the run may not use torch."""
    with pytest.raises(NotApplicable):
        CollectivesCollector(directory=tmp_path).collect()


def test_dead_socket(tmp_path: Path) -> None:
    """It is counted, and series of one rank do not depend on another's."""
    recorder = {"fr_trace_json": reply(entry(6), enqueued=7, done=6)}
    with worker_server(tmp_path / "job" / "0.sock", lambda: recorder), socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(tmp_path / "job" / "1.sock"))
        gone.close()
        collection = CollectivesCollector(directory=tmp_path).collect()
    pulls = values(collection, "rankwatch_flight_recorder_pulls_total")
    assert {labels[1:]: value for labels, value in pulls.items() if value} == {
        ("0", "success"): 1.0,
        ("1", "failure"): 1.0,
    }
    assert len(pulls) == 2 * 3
    place = ("job", "0", "default_pg", "0-1", "flight_recorder")
    assert values(collection, "rankwatch_collective_last_enqueued") == {place: 7.0}
    assert values(collection, "rankwatch_collective_last_completed") == {place: 6.0}


@pytest.mark.parametrize(
    ("start", "item", "end", "most"),
    [
        (b'{"version":[],"a":0', b',"k":0', b"}", "1048576 values"),
        (b'{"entries":[{"record_id":0,"input_dtypes":["a"', b',"a"', b',"\xff"]}]}', "1048576 values"),
        (b'{"pg_config":{"a":{"ranks":[1', b",1", b"]}}}", "1048576 values"),
        (b'{"entries":[{"record_id":1,"input_sizes":[[]', b",[]", b"]}]}", "262144 objects"),
    ],
    ids=["members", "texts", "numbers", "small parts, which in memory take twenty times their size"],
)
def test_endless_values(start: bytes, item: bytes, end: bytes, most: str) -> None:
    """A reply of endless values is refused before it is decoded, whatever these are: eight such ranks would
    take all that the agent may have."""
    body = bytearray(start + item * (MAX_OBJECTS if "objects" in most else MAX_VALUES) + end)
    with pytest.raises(FlightRecorderError, match=f"more than {most}"):
        client(Path("0.sock")).parse(body)


def test_large_ring() -> None:
    """A ring of 20,000 entries, as large jobs have it, is within all limits of a reply."""
    also = {"op_id": 1, "p2p_seq_id": 0, "thread_id": "139818109520768", "thread_name": "python"}
    also |= {"time_discovered_started_ns": 0, "duration_ms": 0.123456}
    entries = (entry(number, **also) for number in range(20_000))
    body = json.dumps(reply(*entries), separators=(",", ":")).encode()
    assert len(body) < MAX_REPLY_BYTES
    assert len(client(Path("0.sock")).parse(bytearray(body)).entries) == 20_000


def test_recorders_share_the_byte_limit(tmp_path: Path) -> None:
    """The first recorder takes the bytes of a reply nearly all, so the second is too large."""
    long = {"fr_trace_json": "x" * (MAX_REPLY_BYTES - 100), "dump_nccl_trace_json": "y" * 20_000}
    with worker_server(tmp_path / "0.sock", lambda: long):
        with pytest.raises(FlightRecorderError, match="more than"):
            client(tmp_path / "0.sock").ask()
        del long["dump_nccl_trace_json"]
        alone = client(tmp_path / "0.sock").ask()
        assert len(alone["fr_trace_json"]) > MAX_REPLY_BYTES - 200


def test_recorder_per_backend(tmp_path: Path) -> None:
    """NCCL2 has one of its own and it matters; releases without `fr_dump_file` would show gloo's twice."""
    gloo = reply(entry(0, profiling_name="gloo:all_reduce"), enqueued=1)
    nccl2 = reply(entry(41, profiling_name="nccl2:all_reduce"), enqueued=42, done=41)
    handlers = {"fr_trace_json": gloo, "fr_dump_file": {}, "fr_trace_json?backend=nccl2": nccl2}
    with worker_server(tmp_path / "0.sock", lambda: handlers) as asked:
        asking = client(tmp_path / "0.sock")
        replies = asking.ask()
        assert main_recorder(replies) == "fr_trace_json_nccl2"
        assert asking.parse(replies["fr_trace_json_nccl2"]).entries[0].record_id == 41
        assert asked[1:] == ["/handler/fr_trace_json", "/handler/fr_trace_json?backend=nccl2"]
        del handlers["fr_dump_file"]
        asking.find()
        assert list(asking.ask()) == ["fr_trace_json"]


def test_all_ranks_are_asked_side_by_side(tmp_path: Path) -> None:
    """Silent ranks cost their time once: here each rank answers only once all of them were asked."""
    ranks = 12
    together = threading.Barrier(ranks)

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(DEADLINE_SECONDS)
        connection.sendall(http(HANDLERS))

    with contextlib.ExitStack() as servers:
        for number in range(ranks):
            servers.enter_context(answering(tmp_path / f"{number}.sock", answer))
        clients = {number: client(tmp_path / f"{number}.sock") for number in range(ranks)}
        assert find_silent(clients) == {}


def test_silent_and_dead_ranks(tmp_path: Path) -> None:
    """One that takes the question and gives no answer differs from one that is gone."""
    with listening_at(tmp_path / "0.sock"), socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(tmp_path / "1.sock"))
        body = http(b'{"entries": []}')
        with server(tmp_path / "2.sock", http(HANDLERS), body):
            clients = {number: client(tmp_path / f"{number}.sock", 0.5) for number in range(3)}
            answers = dict(ask_all(clients, at_once=2))
    assert isinstance(answers[0], SilentRankError)
    assert isinstance(answers[1], FlightRecorderError)
    assert not isinstance(answers[1], SilentRankError)
    assert answers[2] == {"fr_trace_json": bytearray(b'{"entries": []}')}


def test_full_queue_of_questions(tmp_path: Path) -> None:
    """A stopped rank accepts nobody, so its queue fills up: it is as silent as before."""
    with listening_at(tmp_path / "0.sock", backlog=0), contextlib.ExitStack() as asked:
        for _ in range(4):
            waiting = asked.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(tmp_path / "0.sock"))
        with pytest.raises(SilentRankError):
            client(tmp_path / "0.sock", 0.2).ask()


def test_capturing_rank(tmp_path: Path) -> None:
    """A rank that captures a CUDA graph is not asked for its recorder, which would query events. That is no
    failure of the recorder, and it is asked again as soon as the capture is over."""
    writer = Writer(tmp_path, Identity(run="job", rank=0), phases=())
    empty = http(b'{"entries": [], "pg_status": {}}')
    with server(writer.path.with_suffix(".sock"), http(HANDLERS), http(HANDLERS), empty) as path:
        asking = client(path)
        rank = RecordedRank(asking, max_groups=1, run="job")
        writer.integers[Now.CAPTURING] = 1
        with pytest.raises(CapturingRankError, match="captures a CUDA graph") as refused:
            asking.ask()
        rank.take(1.0, refused.value, ())
        assert rank.asked < 0.0
        pulls = {each.labels[2]: each.value for each in rank.series(("job", "0"), set()) if each.labels[2:]}
        assert pulls == {"success": 0, "failure": 0, "capturing": 1}
        writer.integers[Now.CAPTURING] = 0
        assert pull(asking)["fr_trace_json"].entries == []


def test_odd_entry_and_odd_parts() -> None:
    """An entry that cannot be understood is left out and counted; an odd part costs only itself."""
    body = reply(entry(0), entry(1, state=[]), entry(2), enqueued=3, done=2)
    body["version"] = []
    dump = parse_reply(json.dumps(body).encode())
    assert ([each.record_id for each in dump.entries], dump.skipped) == ([0, 2], 1)
    assert dump.pg_status["0"].last_enqueued_collective == 3
    assert dump.pg_config["0"].desc == "default_pg"
    body["pg_status"] = {"0": 1}
    dump = parse_reply(json.dumps(body).encode())
    assert (len(dump.entries), dump.pg_status) == (2, {})


def test_bytes_that_are_no_utf8() -> None:
    """Each is replaced, wherever it is, beside characters of any width."""
    name = "\u00e9" * 200_001 + "\U0001f600"
    text = json.dumps(reply(entry(0, process_group=["0", name + "?"])), ensure_ascii=False).encode()
    dump = parse_reply(bytearray(text.replace(b"?", b"\xff")))
    assert dump.entries[0].group == ("0", name + "\ufffd")


@pytest.mark.parametrize(
    "body",
    [
        b'{"version": [], "a": 0}',
        b'{"other": {"x": 1}}',
        b'{"entries": {"x": ["a"]}}',
        b'{"entries": [{"record_id": "x"}]}',
        b'{"fr_trace_json": {"entries": []}}',
        b'{"entries": [], "version": []}',
    ],
)
def test_no_plain_objects(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """What fits no dump is not loaded as plain objects, which take fifty times the size of the text."""

    def refused(*_: object) -> None:
        pytest.fail("plain objects were made")

    monkeypatch.setattr(parse, "load_json", refused)
    with suppress(DumpError):
        assert not parse_reply(body).entries


def test_endless_odd_entries() -> None:
    """So many entries that are not understood are no dump."""
    with pytest.raises(DumpError, match="more than 1024"):
        parse_reply(b'{"entries":[' + b",".join([b"0"] * 5000) + b"]}")
