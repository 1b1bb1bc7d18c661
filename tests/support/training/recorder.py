"""Flight recorders for tests: entries as torch writes them, dumps as pickles, and a rank's worker server. The
server speaks real HTTP over a real unix socket."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import strategies as st

from support.servers.loopback import listening_at

_TUPLES = {1: b"\x85", 2: b"\x86", 3: b"\x87"}
_CONSTANTS = {None: b"N", True: b"\x88", False: b"\x89"}


ANY_REPLY = st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
    lambda value: json.dumps({"entries": value, "pg_status": value}).encode()
)
"""Bytes of any kind, and JSON that is a dump in its outermost members only."""


def entry(record_id: int, **fields: object) -> dict[str, object]:
    """An entry of NCCL's recorder, as torch 2.13 writes it: one that was enqueued."""
    return {
        "record_id": record_id,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": record_id + 1,
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[1024]],
        "output_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "time_created_ns": 1_000_000_000 * (1000 + record_id),
        "time_discovered_completed_ns": None,
        "timeout_ms": 600000,
        **fields,
    }


def completed(record_id: int, milliseconds: float | None = None, **fields: object) -> dict[str, object]:
    """One that completed, with its time where timing is on."""
    timed = {} if milliseconds is None else {"duration_ms": milliseconds}
    return entry(record_id, state="completed", retired=True, **timed, **fields)


def reply(
    *entries: Mapping[str, object],
    enqueued: int = 0,
    done: int = 0,
    ranks: str = "[0, 1]",
    more: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, object]:
    """A dump of the recorder; `more` are groups by local id with last enqueued and last completed."""
    numbers = {"0": (enqueued, done), **(more or {})}
    return {
        "version": "2.10",
        "entries": list(entries),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {
            local: {"last_enqueued_collective": str(last), "last_completed_collective": str(past)}
            for local, (last, past) in numbers.items()
        },
    }


def _reply(connection: socket.socket, answer: Callable[[], Mapping[str, object]], asked: list[str]) -> None:
    target = connection.recv(65536).split()[1].decode()
    handlers = answer()
    asked.append(target)
    name = target.removeprefix("/handler/")
    found = handlers.get(name) if name else ["ping", *handlers]
    status = b"404 Not Found" if found is None else b"200 OK"
    connection.sendall(b"HTTP/1.0 " + status + b"\r\n\r\n" + json.dumps(found).encode())


@contextmanager
def answering(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Serves one connection after the other until the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with listening_at(path) as listening:

        def serve() -> None:
            with suppress(OSError):  # the end
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):  # the client has read enough, or has no more time
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def worker_server(path: Path, answer: Callable[[], Mapping[str, object]]) -> Iterator[list[str]]:
    """Serves what `answer` gives (handler -> reply) until the end; yields the questions that came."""
    asked: list[str] = []
    with answering(path, lambda connection: _reply(connection, answer, asked)):
        yield asked


def recorder_pickle(document: object) -> bytes:
    """A dump as PyTorch writes it: protocol 2, each text once, containers never shared."""
    writer = _PickleWriter()
    writer.write(document)
    return b"\x80\x02" + bytes(writer.output) + b"r\xff\xff\x00\x00."


class _PickleWriter:
    def __init__(self) -> None:
        self.output = bytearray()
        self._texts: dict[str, int] = {}

    def write(self, value: object) -> None:
        if value is None or isinstance(value, bool):
            self.output += _CONSTANTS[value]
        elif isinstance(value, int):
            self.output += _number(value)
        elif isinstance(value, str):
            self._text(value)
        elif isinstance(value, tuple):
            self._all(value)
            self.output += _TUPLES[len(value)]
        elif isinstance(value, list):
            self.output += b"]("
            self._all(value)
            self.output += b"e"
        elif isinstance(value, dict):
            self.output += b"}("
            self._all(tuple(each for item in value.items() for each in item))
            self.output += b"u"
        else:
            raise TypeError(type(value))

    def _all(self, values: tuple[object, ...] | list[object]) -> None:
        for each in values:
            self.write(each)

    def _text(self, value: str) -> None:
        index = self._texts.get(value)
        if index is None:
            index = self._texts[value] = len(self._texts)
            data = value.encode()
            self.output += b"X" + struct.pack("<I", len(data)) + data
            self.output += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)
        else:
            self.output += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
