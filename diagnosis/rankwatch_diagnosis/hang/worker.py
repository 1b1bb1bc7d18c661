"""Reads dump files in confined processes: what a hostile dump breaks is one of these processes alone.

`read_dumps` gives the ranks and the open files to worker processes, which run this module with the rights of
the owner of the files. A worker answers each with the length of a MessagePack and the MessagePack of an
`Answer`. A worker that breaks costs the dump that it was reading, and another one takes over.
"""

from __future__ import annotations

import errno
import gc
import math
import os
import queue
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rankwatch.untrusted.children import Limits, Owner, confined, owner_of
from rankwatch.untrusted.folders import NotRegularError, open_path, open_regular, read_all
from rankwatch_agent.training.flight_recorder.parse import DumpError, parse
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.job import HangSnapshot

MAX_FILE_BYTES = 256 << 20
"""2,000 entries are 0.3 MB as a pickle and 1.1 MB as JSON."""
MEMORY_BYTES = 3 << 30
"""Address space of a worker."""
_LIMITS = Limits(seconds=86400.0, cpu_seconds=86400, memory_bytes=MEMORY_BYTES, output_bytes=0)
"""A worker may read thousands of dumps, each of which has limits of its own."""
_LEAST_MEMORY_BYTES = 128 << 20
_MEMORY_OF_A_BYTE = 40
"""Dumps of PyTorch take 2 to 20 bytes of memory for each of theirs, a list of empty objects 30. A few bytes
of a pickle can ask for any amount."""
_LEAST_SECONDS = 5
_BYTES_PER_SECOND = 2 << 20
"""Dumps are read at 8 to 90 MB a second of the processor. A few bytes of a pickle can occupy it for years."""
_LENGTH = struct.Struct(">I")
_LONGEST_QUESTION = 64
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
    by_owner: dict[Owner | None, dict[int, Path]] = {}
    for rank, path in sorted(paths.items()):
        by_owner.setdefault(_owner(path), {})[rank] = path.absolute()
    reading = Reading()
    for owner, files in by_owner.items():
        waiting: queue.SimpleQueue[tuple[int, Path]] = queue.SimpleQueue()
        for each in files.items():
            waiting.put(each)
        workers = max(1, min(os.cpu_count() or 1, _MAX_WORKERS, len(files) // _FILES_PER_WORKER))
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(_drain, waiting, owner, deadline_seconds) for _ in range(workers)]:
                part = done.result()
                reading.snapshots += part.snapshots
                reading.broken |= part.broken
    reading.snapshots.sort(key=lambda each: each.rank)
    return reading


def _owner(path: Path) -> Owner | None:
    """Return whose rights a worker takes for a file, if this process is root: those of whoever made it."""
    if os.geteuid():
        return None
    try:
        return owner_of(path.lstat().st_uid)
    except OSError:
        return None  # opening it will say why


def _drain(
    waiting: queue.SimpleQueue[tuple[int, Path]], owner: Owner | None, deadline_seconds: float
) -> Reading:
    """Read until nothing waits, with one worker at a time."""
    reading = Reading()
    worker: _Worker | None = None
    try:
        while True:
            try:
                rank, path = waiting.get_nowait()
            except queue.Empty:
                return reading
            worker = worker or _Worker(owner)
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
    def __init__(self, owner: Owner | None) -> None:
        self._owner = owner
        self._input, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                confined(__name__, limits=_LIMITS, owner=owner),
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._decoder = msgspec.msgpack.Decoder(Answer)

    def ask(self, rank: int, path: Path, deadline_seconds: float) -> Answer | None:
        """Return the answer, or None where the worker ended or was too slow; it is of no use then."""
        end = time.monotonic() + deadline_seconds
        try:
            file = self._open(path)
        except OSError as error:
            return _refusal(error)
        try:
            socket.send_fds(self._input, [b"%d" % rank], [file])
            head = self._read(_LENGTH.size, end)
            body = self._read(_LENGTH.unpack(head)[0], end) if head else None
        except OSError:
            return None
        finally:
            os.close(file)
        try:
            return None if body is None else self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError):
            return None

    def _open(self, path: Path) -> int:
        """Open a file, as its owner may be unable to in a folder of root. Root follows no link."""
        if self._owner is None:
            return open_path(os.fspath(path))
        return open_regular(path, owner=self._owner.uid, follow_folder=True)

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


def main(_as_owner: bool) -> None:
    """Run as a worker: answer until the input ends."""
    gc.disable()  # plain containers of a dump hold no cycle that matters, and a dump is dropped as a whole
    output = sys.stdout.buffer
    encoder = msgspec.msgpack.Encoder()
    questions = socket.socket(fileno=sys.stdin.fileno())
    while True:
        rank, files, _, _ = socket.recv_fds(questions, _LONGEST_QUESTION, 1)
        if not rank:
            return
        answer = _read_dump(files[0], int(rank))
        os.close(files[0])
        try:
            body = encoder.encode(answer)
        except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
            body = encoder.encode(Answer(None, "its numbers or texts are out of range"))
        output.write(_LENGTH.pack(len(body)) + body)
        output.flush()


def _read_dump(file: int, rank: int) -> Answer:
    """Return an open file as an answer; never raises for what it holds."""
    try:
        size = os.fstat(file).st_size
        _limit_seconds(size)
        with bounded_memory(room_for(size)):
            return Answer(snapshot_of(parse(read_all(file, MAX_FILE_BYTES)), rank))
    except OSError as error:
        return _refusal(error)
    except MemoryError:
        return Answer(None, "needs far more memory than a dump of its size, or than there is")
    except DumpError as error:
        return Answer(None, str(error)[:_MAX_REASON])


def _refusal(error: OSError) -> Answer:
    """Say why a file could not be read."""
    if isinstance(error, NotRegularError):
        return Answer(None, "is no regular file")
    if error.errno == errno.EFBIG:
        return Answer(None, f"is larger than {MAX_FILE_BYTES >> 20} MiB")
    return Answer(None, f"could not be read: {error.strerror or error}")


def room_for(file_bytes: int) -> int:
    """Return the bytes of memory that reading a file of dumps may take."""
    return _LEAST_MEMORY_BYTES + _MEMORY_OF_A_BYTE * file_bytes


@contextmanager
def bounded_memory(more_bytes: int) -> Iterator[None]:
    """Let the address space of this process grow by `more_bytes` at most while the block runs.

    Beyond it is a MemoryError. A bound that the process already has stays where it is lower. Linux does not
    wait for the machine to run out of memory then, and ends no other process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    present = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    known = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(present + more_bytes, *known, sys.maxsize), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _limit_seconds(file_bytes: int) -> None:
    """Have the kernel end this process where a file takes it far longer than it should."""
    allowed = _LEAST_SECONDS + file_bytes // _BYTES_PER_SECOND
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time()) + allowed
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )
