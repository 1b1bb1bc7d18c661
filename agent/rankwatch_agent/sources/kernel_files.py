"""Reads small text files, such as those of /proc and /sys, and tells a missing file from a broken one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from rankwatch_agent.runtime.errors import CollectError, NotApplicable

Parsed = TypeVar("Parsed")
Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_FILE_BYTES = 4 << 20
"""Longer files are refused. /proc/net/dev has about 130 bytes per interface."""
MAX_ENTRIES = 1024
"""Most names taken from one directory. No machine has as many devices."""
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""These errors say nothing about the file: it may be readable a moment later."""

# The kernel lacks the feature, the driver does not know the answer, or the process has ended (ESRCH).
_NOT_HERE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ESRCH}
)
_CHUNK_BYTES = 1 << 16
_MAX_COUNT = 2**64 - 1
_MAX_NAMED_ENTRIES = 5


class OutOfDescriptorsError(CollectError):
    """The process or the machine has no file descriptor left."""


class Table(NamedTuple, Generic[Key, Value]):
    """The entries of a file with one entry per line or field. A broken entry costs only itself."""

    found: dict[Key, Value]
    broken: tuple[str, ...] = ()
    """Names of the entries that could not be parsed."""

    def errors(self, path: Path) -> list[CollectError]:
        """Return one error that names the broken entries of the file, or no error."""
        if not self.broken:
            return []
        more = len(self.broken) - _MAX_NAMED_ENTRIES
        named = ", ".join(self.broken[:_MAX_NAMED_ENTRIES]) + (f" and {more} more" if more > 0 else "")
        return [CollectError(f"could not parse {path}: {named}")]


def read_kernel_file(path: Path) -> str:
    """Return the text of the file.

    Raises NotApplicable where this kernel has no such file, CollectError where it cannot be read.
    """
    try:
        raw = _read(path)
    except OSError as error:
        if error.errno in _NOT_HERE:
            raise NotApplicable(f"{path}: {error.strerror or error}") from None
        raise _collect_error("read", str(path), error) from None
    except ValueError as error:  # the name holds a NUL
        raise CollectError(f"could not read {str(path)!r:.200}: {error}") from None
    return raw.decode("utf-8", "replace")


def text_or_empty(path: Path) -> str:
    """Return the text of the file; empty where there is none, or where the agent lacks the permission."""
    try:
        return read_kernel_file(path)
    except (NotApplicable, CollectError):
        return ""


def parse_kernel_file(path: Path, parse: Callable[[str], Parsed]) -> Parsed:
    """Read and parse the file. A ValueError or LookupError of `parse` becomes a CollectError."""
    text = read_kernel_file(path)
    try:
        return parse(text)
    except (ValueError, LookupError) as error:
        raise CollectError(f"could not parse {path}: {error}") from None


def parse_count(text: str) -> int:
    """Parse a counter of the kernel, from 0 to 2^64 - 1. Raises ValueError."""
    digits = text.strip()
    # int() also accepts a sign, 1_000 and the digits of other scripts.
    if not (digits.isascii() and digits.isdecimal()) or int(digits) > _MAX_COUNT:
        raise ValueError(f"{digits!r:.40} is not a count")
    return int(digits)


def parse_lines(
    text: str, parse: Callable[[str], tuple[Key, Value]], *, heading: int = 0
) -> Table[Key, Value]:
    """Parse each line after the first `heading` lines. A ValueError of `parse` marks the line as broken.

    Raises ValueError where the heading itself is missing.
    """
    lines = text.splitlines()
    if len(lines) < heading:
        raise ValueError("the heading is missing")
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
    """Parse the text of each named field. A ValueError of `parse` marks the field as broken."""
    found = {}
    broken = []
    for name, text in fields:
        try:
            found[name] = parse(text)
        except (ValueError, LookupError):
            broken.append(name)
    return Table(found, tuple(broken))


def list_names(directory: str) -> list[str]:
    """Return the names in the directory, sorted.

    Raises NotApplicable where there is no such directory, CollectError where it cannot be listed.
    """
    try:
        return sorted(os.listdir(directory))[:MAX_ENTRIES]  # noqa: PTH208 - a Path for each of 400 files costs
    except (FileNotFoundError, NotADirectoryError):
        raise NotApplicable(f"there is no {directory}") from None
    except OSError as error:
        raise _collect_error("list", directory, error) from None


def names_or_empty(directory: str) -> list[str]:
    """Return the names in the directory, or none where it cannot be listed. Raises OutOfDescriptorsError."""
    try:
        return list_names(directory)
    except OutOfDescriptorsError:
        raise
    except (NotApplicable, CollectError):
        return []


def _collect_error(verb: str, path: str, error: OSError) -> CollectError:
    kind = OutOfDescriptorsError if error.errno in OUT_OF_DESCRIPTORS else CollectError
    return kind(f"could not {verb} {path}: {error.strerror or error}")


def _read(path: Path) -> bytes:
    """Read the whole file. It never blocks: a FIFO in the file's place is refused."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISFIFO(os.fstat(file).st_mode):  # without a writer it reads as empty
            raise CollectError(f"could not read {path}: it is a FIFO")
        found = bytearray()
        while chunk := os.read(file, _CHUNK_BYTES):
            found += chunk
            if len(found) > MAX_FILE_BYTES:
                raise CollectError(f"could not read {path}: it has more than {MAX_FILE_BYTES} bytes")
        return bytes(found)
    finally:
        os.close(file)
