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

from rankwatch.blackbox.copied import CopiedFile
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.folders import Folder, open_regular

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
_pack_head, _pack_number = struct.Struct("<QdqBBxxI").pack_into, struct.Struct("<Q").pack_into
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
    """Creates the file of this name and writes lines into it. Raises OSError if it cannot be created.

    The lines of the process that had the rank before are kept under another suffix. Who may read the file is
    decided by the umask of the process; nobody may write to it, as to a black box.

    copied: the file is not mapped, but memory is copied into it (see `rankwatch.blackbox.copied`).
    """

    def __init__(self, folder: Folder, name: str, *, copied: bool = False) -> None:
        with contextlib.suppress(FileNotFoundError):
            folder.rename(name, f"{name.removesuffix(SUFFIX)}{PREVIOUS_SUFFIX}")
        file = folder.create(name, mode=0o444)
        self._copies: CopiedFile | None = None
        try:
            os.posix_fallocate(file, 0, FILE_BYTES)  # a full file system is an error now, not SIGBUS later
            if copied:
                self._copies = CopiedFile(file, FILE_BYTES, part_bytes=FILE_BYTES, ring_offset=FILE_BYTES)
            self._map = mmap.mmap(file, FILE_BYTES) if self._copies is None else self._copies.memory
        except BaseException:
            folder.remove(name)
            raise
        finally:
            os.close(file)
        for slot in range(SLOTS):
            struct.pack_into("<Q", self._map, _HEADER_BYTES + slot * _SLOT_BYTES, _NOTHING)
        _HEADER.pack_into(self._map, 0, _MAGIC, _VERSION, SLOTS, _SLOT_BYTES)
        self._next_number = itertools.count().__next__  # atomic, so threads need no lock

    def write(self, text: str, *, source: Source, severity: int, step: int) -> None:
        """Write one line; its text is cut to LONGEST_BYTES."""
        if len(text) > LONGEST_BYTES:
            text = text[:LONGEST_BYTES]
        try:
            raw = text.encode()  # takes a third of the time that `replace` takes
        except UnicodeEncodeError:
            raw = text.encode("utf-8", "replace")
        size = len(raw)
        if size > LONGEST_BYTES:
            size, raw = LONGEST_BYTES, raw[:LONGEST_BYTES]
        number = self._next_number()
        at = _HEADER_BYTES + number % SLOTS * _SLOT_BYTES
        target = self._map
        _pack_head(target, at, _NOTHING, time.time(), step, severity, source, size)
        start = at + _TEXT_OFFSET
        target[start : start + size] = raw
        _pack_number(target, at, number)

    def flush(self) -> None:
        """Bring the file up to date, if memory is copied into it. Raises OSError."""
        if self._copies is not None:
            self._copies.copy()

    def close(self) -> None:
        """Stop the copies: another file takes over. Writing stays possible."""
        copies, self._copies = self._copies, None
        if copies is not None:
            copies.close()


def read_lines(file: int, name: object) -> list[Line]:
    """Return the lines in an open file, the oldest first. `name` is that of the file, for errors.

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
    """Read a file by its path as `read_lines` does. A link is not followed."""
    file = open_regular(path, follow_folder=True)
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
