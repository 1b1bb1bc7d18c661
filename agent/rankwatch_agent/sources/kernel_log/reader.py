"""Follows /dev/kmsg, or a file or FIFO of such records, from the oldest record that the kernel still has.

A record is a line `priority,sequence,microseconds,flags;message`; indented lines may follow it. The format is
that of the kernel's Documentation/ABI/testing/dev-kmsg.
"""

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
_CHUNK_BYTES = 1 << 16
"""The device returns one record per read, of at most 8 KiB, and refuses a buffer that is too small."""
_MAX_LINE_BYTES = 1 << 14
"""Longer lines are cut."""
_REFUSED = frozenset({errno.EPERM, errno.EACCES})
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class KernelRecord(NamedTuple):
    """A record of the kernel's log."""

    sequence: int
    """Number of the record since boot. A gap means that records were overwritten."""
    seconds: float
    """Time since boot on the log's own clock, which may drift against the wall clock."""
    text: str
    """The message on one line. Unprintable bytes stay escaped as the kernel writes them."""


def parse_record(line: bytes) -> KernelRecord | None:
    """Returns the record that begins on this line; None for continuation lines and anything else."""
    header = _HEADER.match(line)
    if header is None:
        return None
    text = line[header.end() :].decode("utf-8", "replace")
    return KernelRecord(int(header[1]), int(header[2]) / 1e6, text.replace(_ESCAPED_NEWLINE, " ").strip())


class KernelLogReader:
    """Keeps its position between reads. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._was_open = False
        self._unfinished = b""
        self._last_sequence: int | None = None
        self.missed = 0
        """Records that were overwritten before they were read, by the gaps in the sequence."""
        self.caught_up = False
        """True once the reader has reached the end of the log for the first time."""

    def read(self, max_lines: int) -> list[KernelRecord]:
        """Returns the records since the last call, at most about `max_lines`. The next call returns the rest.

        Raises NotApplicable where there is no such file or the agent never had permission to read it,
        CollectError where it cannot be read.
        """
        descriptor = self._ready()
        records: list[KernelRecord] = []
        lines = 0
        while lines < max_lines:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except BrokenPipeError:  # overwritten just now; the next read gives the oldest record left
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
            found = self._split(chunk)
            lines += max(1, len(found))  # chunks without a line count too, so that the loop ends
            for line in found:
                self._take(line, records)
        return records

    def close(self) -> None:
        """Closes the file. The next read opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, line: bytes, records: list[KernelRecord]) -> None:
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

    def _split(self, chunk: bytes) -> list[bytes]:
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
        self._was_open = True
        self._unfinished = b""
        if not self._is_device():
            self._last_sequence = None
        return self._descriptor

    def _is_device(self) -> bool:
        """True for /dev/kmsg, whose sequence goes on when it is opened again."""
        return self._descriptor is not None and stat.S_ISCHR(os.fstat(self._descriptor).st_mode)

    def _replaced(self, descriptor: int) -> bool:
        """True if the path now leads to another file, or the file was truncated."""
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
        if error.errno in _REFUSED and not self._was_open:
            return NotApplicable(f"{reason}; it takes the capability CAP_SYSLOG and access to the device")
        return CollectError(f"could not open {reason}")
