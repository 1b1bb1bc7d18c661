"""Opens what a user names, without waiting for anybody, and unpacks it, within bounds."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import Any, cast

from rankwatch_agent.runtime.errors import UserError

DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
"""Errors that reading raises where a gzip is damaged or ends in the middle."""
_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 17
_MOST_RATIO = 100
"""Logs unpack to 14 times their size, traces with Python stacks to 36 times; gzip can reach 1,032."""
_ANY_RATIO_BYTES = 1 << 20
"""So much may come out of any file."""


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file to read; raises OSError. A pipe that nobody writes to is empty and does not block."""
    return path.open("rb") if path.is_file() else open(path, "rb", opener=_without_waiting)


def unpacked(file: io.BufferedReader, path: Path) -> io.BufferedReader:
    """Return the content of the file, unpacked where it is a gzip. Reading it raises DAMAGED, and UserError
    where a gzip holds far more than what people pack: a small file must not take hours."""
    if file.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
        return file
    return io.BufferedReader(_Unpacked(file, path), _BLOCK_BYTES)


class _Counted:
    """A file whose bytes are counted as they are read."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.count = 0
        self._file = file

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        self.count += len(part)
        return part


class _Unpacked(io.RawIOBase):
    def __init__(self, file: io.BufferedReader, path: Path) -> None:
        self._packed = _Counted(file)
        self._stream = gzip.GzipFile(mode="rb", fileobj=cast(Any, self._packed))
        self._path = path
        self._left = _ANY_RATIO_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = self._stream.read1(len(buffer))
        self._left -= len(part)
        if self._left + _MOST_RATIO * self._packed.count < 0:
            raise UserError(f"{self._path} unpacks to more than {_MOST_RATIO} times its size")
        buffer[: len(part)] = part
        return len(part)


def _without_waiting(name: str, flags: int) -> int:
    number = os.open(name, flags | os.O_NONBLOCK)
    os.set_blocking(number, True)
    return number
