"""Reads dump files in processes with limits: what a hostile dump breaks is one of these processes alone.

`read_dumps` gives the ranks and paths to worker processes, which run this module. A worker answers each line
with the length of a MessagePack and the MessagePack of an `Answer`. A worker that breaks costs the dump that
it was reading, and another one takes over.
"""

from __future__ import annotations

import gc
import os
import queue
import resource
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rankwatch_agent.training.flight_recorder.parse import DumpError, parse
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.snapshot import HangSnapshot

MAX_FILE_BYTES = 256 << 20
"""2,000 entries are 0.3 MB as a pickle and 1.1 MB as JSON."""
MEMORY_BYTES = 3 << 30
"""Address space of a worker: a pickle of a few bytes can ask for any amount."""
_COMMAND = (sys.executable, "-m", "rankwatch_diagnosis.hang.worker")
_LENGTH = struct.Struct(">I")
_MAX_WORKERS = 8
_FILES_PER_WORKER = 32
"""Below this many files a second worker costs more to start than it saves."""
_CHUNK_BYTES = 1 << 20
_MAX_REASON = 300


class Answer(msgspec.Struct, array_like=True):
    """What one file gave."""

    snapshot: HangSnapshot | None
    error: str = ""
    """Why there is no snapshot."""


@dataclass
class Reading:
    """What a set of dumps gave."""

    snapshots: list[HangSnapshot] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    """Rank -> why its dump cannot be used."""
    skipped_lines: int = 0
    """Lines of a file of snapshots that are no JSON, so that nobody knows their rank."""


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
            head = self._read(_LENGTH.size, end)
            body = self._read(_LENGTH.unpack(head)[0], end) if head else None
        except OSError:
            return None
        try:
            return None if body is None else self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError):
            return None

    def _read(self, size: int, end: float) -> bytes | None:
        parts = bytearray()
        readable = select.poll()  # select() fails above descriptor 1,023
        readable.register(self._output, select.POLLIN)
        while len(parts) < size:
            left = end - time.monotonic()
            if left <= 0 or not readable.poll(1e3 * left):
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


def main() -> None:
    """Run as a worker: answer until the input ends."""
    allowed = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY_BYTES if allowed == resource.RLIM_INFINITY else min(MEMORY_BYTES, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # plain containers of a dump hold no cycle that matters, and a dump is dropped as a whole
    output = sys.stdout.buffer
    encoder = msgspec.msgpack.Encoder()
    for line in sys.stdin.buffer:
        rank, _, path = line.rstrip(b"\n").partition(b" ")
        answer = _read_dump(Path(path.decode(errors="surrogateescape")), int(rank))
        try:
            body = encoder.encode(answer)
        except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
            body = encoder.encode(Answer(None, "its numbers or texts are out of range"))
        output.write(_LENGTH.pack(len(body)) + body)
        output.flush()


def _read_dump(path: Path, rank: int) -> Answer:
    """One file as an answer; never raises for what the file holds."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            return Answer(None, "is no regular file")
        if facts.st_size > MAX_FILE_BYTES:
            return Answer(None, f"is larger than {MAX_FILE_BYTES >> 20} MiB")
        return Answer(snapshot_of(parse(path.read_bytes()), rank))
    except OSError as error:
        return Answer(None, f"could not be read: {error.strerror or error}")
    except MemoryError:
        return Answer(None, f"needs more than {MEMORY_BYTES >> 30} GiB of memory")
    except DumpError as error:
        return Answer(None, str(error)[:_MAX_REASON])


if __name__ == "__main__":
    main()
