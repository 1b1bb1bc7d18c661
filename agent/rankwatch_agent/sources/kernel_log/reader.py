"""Follows /dev/kmsg from the oldest record the kernel still has; a file or FIFO of such records works too."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.errors import CollectError, NotApplicable

_HEADER = re.compile(rb"\d{1,6},(\d{1,18}),(\d{1,18}),[^;]{0,200};")
_ESCAPED_NEWLINE = "\\x0a"


class Record(NamedTuple):
    """What the agent needs of a record."""

    sequence: int
    """Number of the record since boot; a gap means that records were overwritten."""
    seconds: float
    """Time since boot on the log's own clock, which is not set and may drift against the wall clock."""
    text: str
    """The message on one line; unprintable bytes stay escaped as the kernel writes them."""


def parse_record(line: bytes) -> Record | None:
    """The record that begins on this line; None for continuation lines and for what is no record."""
    header = _HEADER.match(line)
    if header is None:
        return None
    text = line[header.end() :].decode("utf-8", "replace")
    return Record(int(header[1]), int(header[2]) / 1e6, text.replace(_ESCAPED_NEWLINE, " ").strip())


_CHUNK_BYTES = 1 << 16
"""The device gives one record per read and refuses a buffer that is too small; its longest has 8 KiB."""
_MAX_LINE_BYTES = 1 << 14
"""Of a longer line only the beginning counts."""
_REFUSED = frozenset({errno.EPERM, errno.EACCES})
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class KernelLogReader:
    """Keeps its place between reads. Not safe for several threads at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._granted = False
        self._unfinished = b""
        self._last_sequence: int | None = None
        self.missed = 0
        """Records that were overwritten before they were read, by the gaps in their numbers."""
        self.caught_up = False
        """True once the end of the log was reached: what was logged before the start is read."""

    def read(self, max_lines: int) -> list[Record]:
        """The records since the last call, at most about `max_lines`; the rest comes next time.

        Raises NotApplicable where there is no such file or the agent was never given leave to read it,
        CollectError where it cannot be read.
        """
        descriptor = self._ready()
        records: list[Record] = []
        lines = 0
        while lines < max_lines:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except BrokenPipeError:  # overwritten under our eyes; the next read gives the oldest left
                lines += 1
                continue
            except BlockingIOError:
                chunk = b""
            except OSError as error:
                self.close()
                raise CollectError(f"could not read {self._path}: {error.strerror or error}") from None
            if not chunk:
                self.caught_up = True
                break
            found = self._lines(chunk)
            lines += max(1, len(found))  # what has no lines has an end too
            for line in found:
                self._take(line, records)
        return records

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, line: bytes, records: list[Record]) -> None:
        record = parse_record(line)
        if record is None:
            return
        last = self._last_sequence
        if last is not None and record.sequence <= last and self._is_device():
            return  # read before the device was opened again
        if last is not None:
            self.missed += max(0, record.sequence - last - 1)
        self._last_sequence = record.sequence
        records.append(record)

    def _lines(self, chunk: bytes) -> list[bytes]:
        *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
        self._unfinished = self._unfinished[:_MAX_LINE_BYTES]
        return [line[:_MAX_LINE_BYTES] for line in lines]

    def _ready(self) -> int:
        if self._descriptor is not None and not self._replaced(self._descriptor):
            return self._descriptor
        self.close()
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self._cannot_open(error) from None
        self._granted = True
        self._unfinished = b""
        if not self._is_device():
            self._last_sequence = None
        return self._descriptor

    def _is_device(self) -> bool:
        """Whether sequence numbers go on after the file is opened again."""
        return self._descriptor is not None and stat.S_ISCHR(os.fstat(self._descriptor).st_mode)

    def _replaced(self, descriptor: int) -> bool:
        """Whether the path now leads to another file, or the file was truncated."""
        try:
            now = self._path.stat()
        except OSError as error:
            self.close()
            raise self._cannot_open(error) from None
        opened = os.fstat(descriptor)
        if stat.S_ISCHR(opened.st_mode) and opened.st_rdev == now.st_rdev:
            return False
        if (opened.st_dev, opened.st_ino) != (now.st_dev, now.st_ino):
            return True
        return stat.S_ISREG(opened.st_mode) and opened.st_size < os.lseek(descriptor, 0, os.SEEK_CUR)

    def _cannot_open(self, error: OSError) -> CollectError | NotApplicable:
        reason = f"{self._path}: {error.strerror or error}"
        if error.errno in _NOT_HERE:
            return NotApplicable(reason)
        if error.errno in _REFUSED and not self._granted:
            return NotApplicable(f"{reason}; it takes the capability CAP_SYSLOG and access to the device")
        return CollectError(f"could not open {reason}")
