"""Reading the small text files of /proc and /sys, and telling a missing one from a broken one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from rankwatch_agent.runtime.errors import CollectError, NotApplicable

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


Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_NAMED = 5


class Table(NamedTuple, Generic[Key, Value]):
    """What could be read, and the names of what could not."""

    found: dict[Key, Value]
    broken: tuple[str, ...] = ()

    def errors(self, path: Path) -> list[CollectError]:
        """One error that names the broken entries of the file at `path`; none where all is sound."""
        if not self.broken:
            return []
        more = len(self.broken) - _MAX_NAMED
        named = ", ".join(self.broken[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        return [CollectError(f"could not parse {path}: {named}")]


def parse_lines(
    text: str, parse: Callable[[str], tuple[Key, Value]], *, heading: int = 0
) -> Table[Key, Value]:
    """Each line by itself, after `heading` lines; one that `parse` rejects with ValueError is broken.

    Raises ValueError where not even the heading is there.
    """
    lines = text.splitlines()
    if len(lines) < heading:
        raise ValueError("it has no heading")
    found = {}
    broken = []
    for number, line in enumerate(lines[heading:], start=heading + 1):
        try:
            key, value = parse(line)
        except (ValueError, LookupError):
            broken.append(f"line {number}")
        else:
            found[key] = value
    return Table(found, tuple(broken))


def parse_fields(fields: Iterable[tuple[str, str]], parse: Callable[[str], Value]) -> Table[str, Value]:
    """Each named text by itself; one that `parse` rejects with ValueError is broken."""
    found = {}
    broken = []
    for name, text in fields:
        try:
            found[name] = parse(text)
        except (ValueError, LookupError):
            broken.append(name)
    return Table(found, tuple(broken))


MAX_ENTRIES = 1024
"""Most entries taken from one directory; far more than a machine has devices."""


def list_names(directory: str) -> list[str]:
    """Names in the directory, sorted; raises NotApplicable where there is none, else CollectError."""
    try:
        return sorted(os.listdir(directory))[:MAX_ENTRIES]  # noqa: PTH208 - a Path for each of 400 files costs
    except (FileNotFoundError, NotADirectoryError):
        raise NotApplicable(f"there is no {directory}") from None
    except OSError as error:
        kind = ExhaustedError if error.errno in EXHAUSTED else CollectError
        raise kind(f"could not list {directory}: {error.strerror or error}") from None


def names_or_none(directory: str) -> list[str]:
    """Names in the directory, sorted; none where it is absent or cannot be read. Raises ExhaustedError."""
    try:
        return list_names(directory)
    except ExhaustedError:
        raise
    except (NotApplicable, CollectError):
        return []
