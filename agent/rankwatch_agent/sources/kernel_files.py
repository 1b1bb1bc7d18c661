"""Reading the small text files of /proc and /sys, and telling a missing one from a broken one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rankwatch_agent.runtime.collector import CollectError, NotApplicable

Parsed = TypeVar("Parsed")

MAX_FILE_BYTES = 4 << 20
"""A longer file is refused. /proc/net/dev has some 130 bytes for an interface."""
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors that tell of the agent or the machine, not of the file: the same file may be read a moment later."""

# A kernel without the feature, or a driver that does not know the answer.
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV})
_CHUNK_BYTES = 1 << 16
_MOST_COUNT = 2**64 - 1


class ExhaustedError(CollectError):
    """There were no file descriptors left; nothing is to be concluded about the file."""


def read_kernel_file(path: Path) -> str:
    """The text of the file; raises NotApplicable where this kernel has none, else CollectError."""
    try:
        raw = _read(path)
    except OSError as error:
        reason = error.strerror or error
        if error.errno in _NOT_HERE:
            raise NotApplicable(f"{path}: {reason}") from None
        kind = ExhaustedError if error.errno in EXHAUSTED else CollectError
        raise kind(f"could not read {path}: {reason}") from None
    except ValueError as error:  # a name out of a file of the kernel that holds a NUL
        raise CollectError(f"could not read {str(path)!r:.200}: {error}") from None
    return raw.decode("utf-8", "replace")


def parse_kernel_file(path: Path, parse: Callable[[str], Parsed]) -> Parsed:
    """The file read and parsed; what `parse` rejects with ValueError or LookupError is a CollectError."""
    text = read_kernel_file(path)
    try:
        return parse(text)
    except (ValueError, LookupError) as error:
        raise CollectError(f"could not parse {path}: {error}") from None


def parse_count(text: str) -> int:
    """A whole number as the kernel counts, from 0 to 2^64 - 1; raises ValueError."""
    digits = text.strip()
    # int() would also take a sign, 1_000 and the digits of other scripts.
    if not (digits.isascii() and digits.isdecimal()) or int(digits) > _MOST_COUNT:
        raise ValueError(f"{digits!r:.40} is no count")
    return int(digits)


def _read(path: Path) -> bytes:
    """The whole file, without waiting: a FIFO in its place would keep the caller for ever."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISFIFO(os.fstat(file).st_mode):  # it reads as empty, which is no answer
            raise CollectError(f"could not read {path}: it is a FIFO")
        found = bytearray()
        while chunk := os.read(file, _CHUNK_BYTES):
            found += chunk
            if len(found) > MAX_FILE_BYTES:
                raise CollectError(f"could not read {path}: it has more than {MAX_FILE_BYTES} bytes")
        return bytes(found)
    finally:
        os.close(file)
