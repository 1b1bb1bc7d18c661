"""Writes a black box. A write takes no lock, makes no system call and does not allocate growing memory."""

from __future__ import annotations

import fcntl
import itertools
import math
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.errors import BlackBoxError
from rankwatch.identity import Identity

_pack_head = layout.HEAD.pack_into
_pack_collective = layout.COLLECTIVE.pack_into
_PAYLOAD = layout.PAYLOAD_OFFSET
_TRIES = 8
"""Attempts to create a file before another process removes its empty directory; a few microseconds each."""


class Writer:
    """The black box of this process.

    The file is created under a temporary name. Its pages are reserved, so that a full file system is an error
    now and not a SIGBUS later. Then the file is locked and gets its final name. The lock is a POSIX record
    lock: the kernel drops it when the process dies, a forked child does not inherit it, and a reader in any
    PID namespace can query it.

    Raises BlackBoxError if the file cannot be created.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        *,
        phases: Iterable[str],
        target_steps: int | None = None,
        run_class: str = "",
        checkpoint_interval_seconds: float = 0.0,
        capacity: int = layout.DEFAULT_CAPACITY,
    ) -> None:
        self.path = directory / identity.run / f"{identity.rank}{layout.SUFFIX}"
        self._size = layout.RING_OFFSET + capacity * layout.RECORD_SIZE
        header = _header(identity, capacity, self._size, target_steps).ljust(layout.DECLARED_OFFSET, b"\0")
        header += layout.DECLARED.pack(run_class.encode(), checkpoint_interval_seconds)
        try:
            self._file, self._map = _create(self.path, self._size, header)
        except OSError as error:
            raise BlackBoxError(f"could not create black box {self.path}: {error.strerror}") from error
        self._ids: dict[str, int] = {}
        self._next_name = itertools.count(1).__next__
        self.refused_name: Callable[[str], object] = str
        """Called with each name that the full table has no place for."""
        self.attach(self._map)
        offsets = range(layout.RING_OFFSET, self._size, layout.RECORD_SIZE)
        self.next_slot = enumerate(itertools.cycle(offsets)).__next__
        """Returns the next (sequence number, offset). The call is atomic, so threads need no lock."""
        for count, name in enumerate(phases, start=1):
            self.name_number(name)
            self.integers[Now.PHASES] = count

    def attach(self, target: mmap.mmap) -> None:
        """Write into `target` from now on."""
        self.target = target
        words = memoryview(target)[layout.NOW_OFFSET : layout.NAMES_OFFSET]
        self.integers = words.cast("q")
        self.floats = words.cast("d")

    def detach(self) -> None:
        """Write into private memory from now on. A forked child must call this."""
        self.attach(mmap.mmap(-1, self._size))

    def name_number(self, name: str) -> int:
        """Return the number of a name. Its first use enters it into the table; 0 once the table is full."""
        number = self._ids.get(name)
        if number is None:
            number = self.new_name(name)
            if number:
                self._ids[name] = number
        return number

    def new_name(self, name: str) -> int:
        """Enter a name even if the table holds the same text; return its number, 0 once the table is full."""
        raw = name.encode("utf-8", "replace")
        number = self._next_name()  # after `encode`: a value that is not text must not use up the table
        if number >= layout.NAME_COUNT:
            self.integers[Now.NAMES_REFUSED] += 1
            self.refused_name(name)
            return 0
        self._put_name(number, raw)
        self.integers[Now.NAMES] = number
        return number

    def fill_name(self, number: int, name: str) -> None:
        """Put a text under a number that was reserved by `new_name("")`. It is filled once."""
        self._put_name(number, name.encode("utf-8", "replace"))

    def _put_name(self, number: int, raw: bytes) -> None:
        raw = raw[: layout.NAME_SIZE - 1]
        at = layout.NAMES_OFFSET + number * layout.NAME_SIZE
        self.target[at + 1 : at + 1 + len(raw)] = raw
        self.target[at] = len(raw)

    def set_gpu(self, uuid: str) -> None:
        """Record the UUID of the rank's GPU. It stays unknown if the table of names is full."""
        self.integers[Now.GPU] = self.name_number(uuid)

    def append(
        self,
        kind: RecordKind,
        name: int,
        start: float,
        end: float,
        payload: struct.Struct,
        *values: float,
    ) -> None:
        """Write one record. Times are seconds on CLOCK_MONOTONIC."""
        number, at = self.next_slot()
        try:
            payload.pack_into(self.target, at + layout.PAYLOAD_OFFSET, *values)
        except BaseException:
            # The slot is reserved. If it stayed empty, every reader would wait for it.
            _pack_head(self.target, at, 0, 0.0, 0.0, number)
            raise
        _pack_head(self.target, at, (kind << layout.NAME_BITS) | name, start, end, number)

    def pair(
        self, tag: int, start: float, end: float, pack: Callable[..., None], first: float, second: float
    ) -> None:
        """Write one record with a payload of two numbers. Faster than `append`, for records of each step.

        tag: see `layout.tag`. pack: `pack_into` of the payload.
        """
        number, at = self.next_slot()
        target = self.target
        try:
            pack(target, at + _PAYLOAD, first, second)
        except BaseException:
            _pack_head(target, at, 0, 0.0, 0.0, number)  # as above
            raise
        _pack_head(target, at, tag, start, end, number)

    def collective(
        self, tag: int, start: float, end: float, size: int, count: int, group: int, flags: int, waited: float
    ) -> None:
        """Write the record of a collective. The last five arguments are the fields of `layout.COLLECTIVE`."""
        number, at = self.next_slot()
        target = self.target
        try:
            _pack_collective(target, at + _PAYLOAD, size, count, group, flags, waited)
        except BaseException:
            _pack_head(target, at, 0, 0.0, 0.0, number)  # as above
            raise
        _pack_head(target, at, tag, start, end, number)

    def unlock(self) -> None:
        """Close the descriptor, which releases the lock. Writing stays possible."""
        os.close(self._file)


def _create(path: Path, size: int, header: bytes) -> tuple[int, mmap.mmap]:
    base = path.parent.parent
    if not base.is_dir():
        base.mkdir(parents=True, exist_ok=True)
        base.chmod(0o1777)  # shared by all users, like /tmp
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file = _open_new(temporary)
    try:
        os.fchmod(file, 0o644)  # independent of the umask, because the agent is another user
        os.posix_fallocate(file, 0, size)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        target = mmap.mmap(file, size)
        target[: len(header)] = header
        # 0 is a valid sequence number, so an empty slot 0 must hold another one.
        layout.HEAD.pack_into(target, layout.RING_OFFSET, 0, 0.0, 0.0, 2**64 - 1)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        os.close(file)
        raise
    return file, target


def _open_new(path: Path) -> int:
    """Create and open a file, and its directory if needed.

    A process that removes old boxes also removes a directory that has become empty. If a run is resumed after
    a day, that may happen just before its new file is created. Then the directory is created again.
    """
    for again in range(_TRIES, 0, -1):
        try:
            _make_readable_directory(path.parent)
            path.unlink(missing_ok=True)  # left by a killed process with the same id, as in a container
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            if again == 1:
                raise
    raise AssertionError("unreachable")


def _make_readable_directory(path: Path) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        return
    path.chmod(0o755)


def _header(identity: Identity, capacity: int, size: int, target_steps: int | None) -> bytes:
    fixed = layout.FIXED.pack(
        layout.MAGIC,
        layout.VERSION,
        layout.HEADER_SIZE,
        layout.RECORD_SIZE,
        layout.NAME_COUNT,
        capacity,
        layout.NOW_OFFSET,
        layout.NAMES_OFFSET,
        layout.RING_OFFSET,
        size,
        identity.rank,
        identity.world_size,
        identity.local_rank,
        os.getpid(),
        time.monotonic(),
        time.time(),
        math.nan if target_steps is None else float(target_steps),
        identity.run.encode(),
        identity.host.encode("utf-8", "replace")[:64],
        len(identity.coordinates),
    )
    coordinates = b"".join(
        layout.COORDINATE.pack(name.encode()[:16], index, size)
        for name, (index, size) in list(identity.coordinates.items())[: layout.MAX_COORDINATES]
    )
    return fixed + coordinates
