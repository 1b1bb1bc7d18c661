"""Open files of a checkpoint, read no faster than allowed, and in time that grows with what is written."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from rankwatch_checkpoints.result import CheckpointError

BLOCK_BYTES = 1 << 20
"""Bytes per read: they stay in the processor's cache between the read and the checksum."""
_LEAST_HOLE_BYTES = 1 << 20
"""Of a sparse file: reading less takes no longer than skipping it."""
MOST_UNWRITTEN_BYTES = 1 << 30
"""Of a sparse file that is hashed: zeros have to be hashed one by one."""
MOST_JSON_BYTES = 64 << 20
MOST_JSON_VALUES = 3_000_000
"""Values and keys of a JSON text. One takes up to about 130 bytes, beside its characters."""


class ReadError(Exception):
    """A file cannot be read; the message is half a sentence without the file's name."""


class MissingFileError(ReadError):
    """The file is not there, or not any more."""


class TooMuchError(ReadError):
    """It is whole as far as one can see, but it would take more memory or time than a checkpoint may."""


class ShortFileError(ReadError):
    """The file ended before the bytes that were asked for."""


class Pace:
    """Counts the bytes that are read, reports them, and sleeps so that they stay below a rate.

    `progress` gets the bytes read so far, at most about once for each 16 MiB.
    """

    def __init__(
        self,
        bytes_per_second: float | Callable[[], float] | None = None,
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
        self._most_bytes: int | None = None
        self._refusal = ""

    def limit(self, more_bytes: int, refusal: str) -> None:
        """Have `add` raise CheckpointError with this message after so many bytes from now on."""
        self._most_bytes, self._refusal = self.bytes + more_bytes, refusal

    def add(self, count: int) -> None:
        """Account for bytes that were just read; may sleep. Raises CheckpointError past the limit."""
        self.bytes += count
        if self._most_bytes is not None and self.bytes > self._most_bytes:
            raise CheckpointError(self._refusal)
        if self._progress is not None and self.bytes - self._reported >= 16 << 20:
            self._reported = self.bytes
            self._progress(self.bytes)
        if self._rate:
            now = self._clock()
            rate = self._rate() if callable(self._rate) else self._rate
            self._allowed_at = max(self._allowed_at, now - 1.0) + count / rate
            if self._allowed_at > now:
                self._sleep(self._allowed_at - now)


class OpenFile:
    """A regular file, open for reading. It closes the descriptor."""

    def __init__(self, descriptor: int, pace: Pace) -> None:
        self._pace = pace
        self._buffer = bytearray(BLOCK_BYTES)
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.size = status.st_size
        self._allocated = status.st_blocks * 512
        self._state = file_state(status)
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
        """Return exactly these bytes. Raises ShortFileError."""
        content = io.BytesIO()  # joining pieces would hold them twice
        for block in self.blocks(offset, count):
            content.write(block)
        return content.getvalue()

    def read_all(self, most_bytes: int) -> bytes:
        """Return the whole content. Raises TooMuchError if it is longer, and ShortFileError."""
        if self.size > most_bytes:
            raise TooMuchError(f"it has {self.size} bytes, more than are read")
        return self.read(0, self.size)

    def blocks(self, offset: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes in blocks, each valid until the next. Raises ShortFileError at an early end."""
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
        """Return their CRC-32, in time that grows with the bytes that are written. Raises ShortFileError."""
        value = 0
        for start, length, is_hole in self._parts(offset, offset + count):
            if is_hole:
                value = crc32_of_zeros(value, length)
                continue
            for block in self.blocks(start, length):
                value = zlib.crc32(block, value)
        return value

    def feed(self, digest: Any) -> None:
        """Update a hashlib object with the whole file. Raises TooMuchError if most of it is not written."""
        holes = sum(length for _, length, is_hole in self._parts(0, self.size) if is_hole)
        if holes > MOST_UNWRITTEN_BYTES:
            raise TooMuchError(
                f"its size is {self.size} bytes, but only {self._allocated} of them are written"
            )
        for block in self.blocks(0, self.size):
            digest.update(block)

    def changed(self) -> bool:
        """Return True if the file has been written to since it was opened."""
        return file_state(os.fstat(self._descriptor)) != self._state

    def _parts(self, offset: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the bytes up to `end` as offset, length, and if they are a large hole.

        A file system that compresses reports fewer blocks, and one that knows no holes reports none: only
        what `SEEK_DATA` calls a hole is one.
        """
        sparse = self.size - self._allocated >= _LEAST_HOLE_BYTES
        while offset < end:
            data = self._seek(offset, os.SEEK_DATA, end, offset) if sparse else offset
            if data - offset >= _LEAST_HOLE_BYTES:
                yield offset, data - offset, True
                offset = data
                continue
            hole = self._seek(data, os.SEEK_HOLE, end, end) if sparse and data < end else end
            yield offset, hole - offset, False
            offset = hole

    def _seek(self, offset: int, whence: int, end: int, unknown: int) -> int:
        """Return where data or a hole begins, at most `end`; `unknown` where the file system cannot tell."""
        try:
            return min(os.lseek(self._descriptor, offset, whence), end)
        except OSError as error:
            return end if error.errno == errno.ENXIO else unknown

    def first_hole(self, offset: int = 0) -> int | None:
        """Find where the first bytes lie that were never written and read as zeros; None where none do."""
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
        """Return bytes of the region. Raises ShortFileError at its end."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise ShortFileError(f"bytes {offset} to {offset + count} lie beyond its {self.size}")
        return self.file.read(self.start + offset, count)

    def blocks(self, offset: int, count: int) -> Iterator[memoryview]:
        """Yield the bytes as OpenFile.blocks does."""
        return self.file.blocks(self.start + offset, count)

    def crc32(self, offset: int, count: int) -> int:
        """Return the CRC-32 as OpenFile.crc32 does."""
        return self.file.crc32(self.start + offset, count)


def file_state(status: os.stat_result) -> tuple[int, int, int]:
    """Return inode, size and time: what differs once a file has been written to or replaced."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def parse_json(data: bytes, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value of a JSON text in UTF-8. Raises ValueError, and TooMuchError for too many values."""
    values = sum(data.count(each) for each in (b",", b":", b"[", b"{"))
    if values > MOST_JSON_VALUES:
        raise TooMuchError(f"it holds more than {MOST_JSON_VALUES} values, more than are read")
    try:
        # Other encodings are modules, which a confined child may not be able to load.
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogatepass")
        return json.loads(text, object_pairs_hook=pairs_hook)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_POLYNOMIAL = 0xEDB88320


def crc32_of_zeros(value: int, count: int) -> int:
    """Return the CRC-32 after `count` more bytes of zero, in time that grows with the digits of `count`.

    As crc32_combine of zlib: a zero byte multiplies the register by x^8, modulo the polynomial.
    """
    register, power = value ^ 0xFFFFFFFF, 0x00800000  # x^8; the highest bit is x^0
    while count:
        if count & 1:
            register = _product(register, power)
        power = _product(power, power)
        count >>= 1
    return register ^ 0xFFFFFFFF


def _product(one: int, other: int) -> int:
    """Multiply two polynomials over GF(2), modulo that of CRC-32."""
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product
