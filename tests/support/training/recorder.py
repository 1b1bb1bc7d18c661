"""A rank's worker server for tests: real HTTP over a real unix socket, with the recorders of torch."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


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
    """What the recorder says; `more` are groups by local id with last enqueued and last completed."""
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
    said = handlers.get(name) if name else ["ping", *handlers]
    status = b"404 Not Found" if said is None else b"200 OK"
    connection.sendall(b"HTTP/1.0 " + status + b"\r\n\r\n" + json.dumps(said).encode())


@contextmanager
def worker_server(path: Path, answer: Callable[[], Mapping[str, object]]) -> Iterator[list[str]]:
    """Serves what `answer` gives (handler -> reply) until the end; yields the questions that came."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked: list[str] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with suppress(OSError):  # the end
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):  # the client has read enough, or has no more time
                        _reply(connection, answer, asked)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
