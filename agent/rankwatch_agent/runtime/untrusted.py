"""Opens files in directories that others can write to, and finds the process that holds one locked."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_FLOCK = struct.Struct("hhqqi4x")


class RankProcess(NamedTuple):
    """The process of a rank that lives on this node."""

    run: str
    rank: int
    pid: int
    """In the agent's PID namespace."""


def open_regular(source: Path) -> int:
    """Open a regular file for reading; neither it nor its directory may be a link.

    Raises OSError, and ValueError for a file of another kind.
    """
    directory = os.open(source.parent, _DIRECTORY)
    try:
        file = os.open(source.name, _FILE, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError("it is not a regular file")
    return file


def read_owned(path: Path, owner: int, most_bytes: int) -> bytes:
    """The content of a file of this user; empty if it is somebody else's, or larger.

    Raises OSError, and ValueError for a file of another kind.
    """
    file = open_regular(path)
    try:
        status = os.fstat(file)
        if status.st_uid != owner or status.st_size > most_bytes:
            return b""
        return os.pread(file, most_bytes, 0)
    finally:
        os.close(file)


def lock_holder(file: int) -> int | None:
    """The id of the process that holds a record lock on an open file, in the agent's PID namespace.

    None where no process holds one, or where it is in a PID namespace that the agent cannot see (Linux then
    reports 0 or -1).
    """
    query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))
    except OSError:
        return None  # a file system without locks
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else None


def writer_of(black_box: Path) -> int | None:
    """The process that writes a black box; None where it is unknown.

    The header holds the id that the trainer sees, which differs in a container, and the file is untrusted.
    But the writer holds a record lock on the file, and the kernel knows the holder.
    """
    try:
        file = open_regular(black_box)
    except (OSError, ValueError):
        return None
    try:
        return lock_holder(file)
    finally:
        os.close(file)
