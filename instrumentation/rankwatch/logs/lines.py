"""The newest lines of a rank in a file of fixed size beside its black box. They survive the process.

    offset  size        what
    0       64          magic, format version, number of slots, size of a slot
    64      1024 x 200  slots

A slot holds the number of its line, when it was written (Unix time), the step, the severity as
OpenTelemetry has it, where the line comes from, the length of the text, and the text in UTF-8. Line n is in
slot n mod 200. The number is invalid while the slot is written, and stored last. Writing takes no lock and
makes no system call.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import struct
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from rankwatch.errors import BlackBoxError

SUFFIX = ".lines"
PREVIOUS_SUFFIX = ".lines-before"
"""Of the process that had the rank before, in an earlier attempt."""
SLOTS = 200
_SLOT_BYTES = 1024
_HEADER = struct.Struct("<8sIII")
_HEADER_BYTES = 64
_MAGIC, _VERSION = b"RANKLINE", 1
_SLOT = struct.Struct("<dqBBxxI")
_TEXT_OFFSET = 8 + _SLOT.size
LONGEST_BYTES = _SLOT_BYTES - _TEXT_OFFSET
"""Of the text of a line; the rest of a longer one is lost."""
FILE_BYTES = _HEADER_BYTES + SLOTS * _SLOT_BYTES
_NOTHING = (1 << 64) - 1
_END_OF_TIME = 1e11


class Source(IntEnum):
    """Where a line comes from."""

    LOG = 0
    """A record of `logging`."""
    STDOUT = 1
    STDERR = 2


class Line(NamedTuple):
    """One line."""

    number: int
    """Counted from 0 in each process."""
    time: float
    """Unix time."""
    step: int
    """The open step, else the last one; -1 before the first."""
    severity: int
    """As OpenTelemetry counts; 0 for output that has none."""
    source: Source
    text: str


class LineWriter:
    """Creates the file at a path and writes lines into it. Raises OSError if it cannot be created.

    The lines of the process that had the rank before are kept under another suffix. The permissions of the
    file are those that the umask of the process leaves.
    """

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_suffix(PREVIOUS_SUFFIX))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(file, 0, FILE_BYTES)  # a full file system is an error now, not SIGBUS later
            self._map = mmap.mmap(file, FILE_BYTES)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(file)
        for slot in range(SLOTS):
            struct.pack_into("<Q", self._map, _HEADER_BYTES + slot * _SLOT_BYTES, _NOTHING)
        _HEADER.pack_into(self._map, 0, _MAGIC, _VERSION, SLOTS, _SLOT_BYTES)
        self._next_number = itertools.count().__next__  # atomic, so threads need no lock

    def write(self, text: str, *, source: Source, severity: int, step: int) -> None:
        """Write one line; its text is cut to LONGEST_BYTES."""
        raw = text[:LONGEST_BYTES].encode("utf-8", "replace")[:LONGEST_BYTES]
        number = self._next_number()
        at = _HEADER_BYTES + number % SLOTS * _SLOT_BYTES
        target = self._map
        target[at : at + 8] = b"\xff" * 8
        _SLOT.pack_into(target, at + 8, time.time(), step, severity, source, len(raw))
        start = at + _TEXT_OFFSET
        target[start : start + len(raw)] = raw
        target[at : at + 8] = number.to_bytes(8, "little")


def read_lines(file: int, name: object) -> list[Line]:
    """The lines in an open file, the oldest first. `name` is that of the file, for errors.

    The file is untrusted, and a process may write it meanwhile: slots that make no sense are left out.
    Raises BlackBoxError for another file, and OSError.
    """
    if os.fstat(file).st_size != FILE_BYTES:
        raise BlackBoxError(f"{name} holds no lines of a rank: its size is wrong", reason="garbage")
    raw = os.pread(file, FILE_BYTES, 0)
    if len(raw) < FILE_BYTES or _HEADER.unpack_from(raw) != (_MAGIC, _VERSION, SLOTS, _SLOT_BYTES):
        raise BlackBoxError(f"{name} holds no lines of a rank that this version reads", reason="garbage")
    again = os.pread(file, FILE_BYTES, 0)
    if len(again) < FILE_BYTES:
        raise BlackBoxError(f"{name} was cut short", reason="truncated")
    return sorted(_lines(raw, again))


def read_lines_at(path: Path) -> list[Line]:
    """As `read_lines`, for a file by its path. A link is not followed."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return read_lines(file, path)
    finally:
        os.close(file)


def _lines(raw: bytes, again: bytes) -> Iterator[Line]:
    for slot in range(SLOTS):
        at = _HEADER_BYTES + slot * _SLOT_BYTES
        number = int.from_bytes(raw[at : at + 8], "little")
        written, step, severity, source, size = _SLOT.unpack_from(raw, at + 8)
        # Where the slot was written again during the first copy, the second one shows another number.
        if number % SLOTS != slot or number == _NOTHING or again[at : at + 8] != raw[at : at + 8]:
            continue
        if not 0.0 <= written < _END_OF_TIME or size > LONGEST_BYTES or source > max(Source):
            continue
        start = at + _TEXT_OFFSET
        text = raw[start : start + size].decode("utf-8", "replace")
        yield Line(number, written, step, min(severity, 24), Source(source), text)
