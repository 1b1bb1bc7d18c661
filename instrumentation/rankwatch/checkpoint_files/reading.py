"""Files of a checkpoint, read so that nothing can block, leave the folder or be read faster than allowed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

BLOCK_BYTES = 1 << 20
"""Bytes per read: they stay in the processor's cache between the read and the checksum."""


class ReadError(Exception):
    """A file cannot be read; the message is half a sentence without the file's name."""


class MissingFileError(ReadError):
    """The file is not there, or not any more."""


class ShortFileError(ReadError):
    """The file ended before the bytes that were asked for."""


class Pace:
    """Counts the bytes that are read, reports them, and sleeps so that they stay below a rate.

    `progress` gets the bytes read so far, at most about once for each 16 MiB.
    """

    def __init__(
        self,
        bytes_per_second: float | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        keep_cached: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes = 0
        self.keep_cached = keep_cached
        self._rate = bytes_per_second
        self._progress = progress
        self._reported = 0
        self._clock = clock
        self._sleep = sleep
        self._allowed_at = clock()

    def add(self, count: int) -> None:
        """Account for bytes that were just read; may sleep."""
        self.bytes += count
        if self._progress is not None and self.bytes - self._reported >= 16 << 20:
            self._reported = self.bytes
            self._progress(self.bytes)
        if self._rate:
            now = self._clock()
            self._allowed_at = max(self._allowed_at, now - 1.0) + count / self._rate
            if self._allowed_at > now:
                self._sleep(self._allowed_at - now)


class OpenFile:
    """A regular file below a folder, open for reading. Raises ReadError for anything else.

    FIFOs, sockets and devices are refused without blocking, symbolic links if they lead out of the folder.
    """

    def __init__(self, path: Path, folder: Path, pace: Pace) -> None:
        self.path = path
        self._pace = pace
        self._buffer = bytearray(BLOCK_BYTES)
        self._descriptor = _open_regular(path, folder)
        found = os.fstat(self._descriptor)
        self.size = found.st_size
        self._modified = found.st_mtime_ns
        self._forget()

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget()
        os.close(self._descriptor)

    def _forget(self) -> None:
        """Have the system drop what it has of the file in memory, unless it is not on disk yet."""
        if not self._pace.keep_cached:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, offset: int, count: int) -> bytes:
        """Exactly these bytes. Raises ShortFileError."""
        pieces = []
        for block in self.blocks(offset, count):
            pieces.append(bytes(block))
        return b"".join(pieces)

    def blocks(self, offset: int, count: int) -> Iterator[memoryview]:
        """The bytes in blocks, each valid until the next. Raises ShortFileError where the file ends early."""
        view = memoryview(self._buffer)
        while count:
            try:
                got = os.preadv(self._descriptor, [view[: min(count, BLOCK_BYTES)]], offset)
            except OSError as error:
                raise ReadError(f"it could not be read at byte {offset}: {error.strerror}") from None
            if not got:
                raise ShortFileError(f"it ends at byte {offset}, {count} bytes too early")
            self._pace.add(got)
            yield view[:got]
            offset += got
            count -= got

    def crc32(self, offset: int, count: int) -> int:
        """CRC-32 of these bytes. Raises ShortFileError."""
        value = 0
        for block in self.blocks(offset, count):
            value = zlib.crc32(block, value)
        return value

    def feed(self, digest: Any) -> None:
        """Update a hashlib object with the whole file."""
        for block in self.blocks(0, self.size):
            digest.update(block)

    def changed(self) -> bool:
        """True if the file has been written to since it was opened."""
        found = os.fstat(self._descriptor)
        return (found.st_size, found.st_mtime_ns) != (self.size, self._modified)

    def first_hole(self, offset: int = 0) -> int | None:
        """Where the first bytes lie that were never written and read as zeros; None if there are none."""
        try:
            hole = os.lseek(self._descriptor, offset, os.SEEK_HOLE)
        except OSError:
            return None
        return hole if hole < self.size else None


class Region:
    """A part of a file, as if it were one: a tensor's bytes in a shard, or the whole file."""

    def __init__(self, file: OpenFile, start: int = 0, size: int | None = None) -> None:
        self.file = file
        self.start = start
        self.size = file.size - start if size is None else size

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the region. Raises ShortFileError at its end."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise ShortFileError(f"bytes {offset} to {offset + count} lie beyond its {self.size}")
        return self.file.read(self.start + offset, count)

    def blocks(self, offset: int, count: int) -> Iterator[memoryview]:
        """As OpenFile.blocks."""
        return self.file.blocks(self.start + offset, count)

    def crc32(self, offset: int, count: int) -> int:
        """As OpenFile.crc32."""
        return self.file.crc32(self.start + offset, count)


def is_within(path: Path, folder: Path) -> bool:
    """True if the path, links followed, lies in the folder."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _open_regular(path: Path, folder: Path) -> int:
    if not is_within(path, folder):
        raise ReadError("it is a symbolic link that leads out of the checkpoint, which is not followed")
    target = os.path.realpath(path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    try:
        if not stat.S_ISREG(os.lstat(target).st_mode):  # before open: opening a device can do something
            raise ReadError("it is no regular file")
        descriptor = os.open(target, flags)
    except FileNotFoundError:
        raise MissingFileError("it is not there") from None
    except OSError as error:
        reason = "it is no regular file" if error.errno == errno.ENXIO else f"{error.strerror}"
        raise ReadError(f"it could not be opened: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ReadError("it is no regular file")
    return descriptor
