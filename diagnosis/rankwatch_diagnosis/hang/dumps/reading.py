"""Reads many dumps side by side through worker processes; a worker that breaks costs the dump it was at."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rankwatch_diagnosis.hang.dumps.worker import LENGTH, Answer
from rankwatch_diagnosis.hang.snapshot import Snapshot

_COMMAND = (sys.executable, "-m", "rankwatch_diagnosis.hang.dumps.worker")
_MAX_WORKERS = 8
_FILES_PER_WORKER = 32
"""Below this many files a second worker costs more to start than it saves."""
_CHUNK_BYTES = 1 << 20


@dataclass
class Reading:
    """What a set of files gave."""

    snapshots: list[Snapshot] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    """Rank -> why its dump cannot be used."""


def read_dumps(paths: Mapping[int, Path], *, deadline_seconds: float = 60.0) -> Reading:
    """Read the dump of each rank.

    deadline_seconds: for one dump.
    """
    waiting: queue.SimpleQueue[tuple[int, Path]] = queue.SimpleQueue()
    for rank in sorted(paths):
        waiting.put((rank, paths[rank].absolute()))
    workers = max(1, min(os.cpu_count() or 1, _MAX_WORKERS, len(paths) // _FILES_PER_WORKER))
    reading = Reading()
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(_drain, waiting, deadline_seconds) for _ in range(workers)]:
            part = done.result()
            reading.snapshots += part.snapshots
            reading.broken |= part.broken
    reading.snapshots.sort(key=lambda each: each.rank)
    return reading


def _drain(waiting: queue.SimpleQueue[tuple[int, Path]], deadline_seconds: float) -> Reading:
    """Read until nothing waits, with one worker at a time."""
    reading = Reading()
    worker: _Worker | None = None
    try:
        while True:
            try:
                rank, path = waiting.get_nowait()
            except queue.Empty:
                return reading
            worker = worker or _Worker()
            answer = worker.ask(rank, path, deadline_seconds)
            if answer is None:
                worker.end()
                worker = None
                reading.broken[rank] = "it broke the process that read it, or took too long"
            elif answer.snapshot is None:
                reading.broken[rank] = answer.error
            else:
                reading.snapshots.append(answer.snapshot)
    finally:
        if worker is not None:
            worker.end()


class _Worker:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._decoder = msgspec.msgpack.Decoder(Answer)

    def ask(self, rank: int, path: Path, deadline_seconds: float) -> Answer | None:
        """The answer, or None where the worker ended or was too slow; it is of no use then."""
        end = time.monotonic() + deadline_seconds
        if b"\n" in (name := os.fsencode(path)):
            return Answer(None, "its name holds a line break")
        try:
            self._input.write(b"%d %s\n" % (rank, name))
            head = self._read(LENGTH.size, end)
            body = self._read(LENGTH.unpack(head)[0], end) if head else None
        except OSError:
            return None
        try:
            return None if body is None else self._decoder.decode(body)
        except msgspec.MsgspecError:
            return None

    def _read(self, size: int, end: float) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._output], [], [], left)[0]:
                return None
            part = os.read(self._output.fileno(), min(size - len(parts), _CHUNK_BYTES))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._input.close()
        self._output.close()
