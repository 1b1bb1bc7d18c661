"""Who is at the other end: the process that holds a lock, and the one that answers on a socket."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from typing import TYPE_CHECKING

from rankwatch.untrusted.folders import LOOK, Folder, NotOwnedError

if TYPE_CHECKING:
    import socket

_FLOCK = struct.Struct("hhqqi4x")
_CREDENTIALS = struct.Struct("3i")


def lock_holder(file: int) -> int | None:
    """Return the process that holds a record lock on an open file: its id in this PID namespace, 0 where it
    is in one that cannot be seen from here; None if no process holds one. Raises OSError."""
    query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def connect(folder: Folder, name: str, owner: int, seconds: float) -> socket.socket:
    """Connect to the unix socket of this name, which must belong to a user and be answered by them.

    owner: user id. seconds: the timeout of the connection, now and later. Raises OSError.

    The path is looked up once: what is connected to is what was checked. Also, its length does not matter,
    where that of the address of a socket is bounded.
    """
    import socket  # which no start of a rank needs

    looked = os.open(name, LOOK, dir_fd=folder.fileno())
    connection = socket.socket(socket.AF_UNIX)
    try:
        status = os.fstat(looked)
        if not stat.S_ISSOCK(status.st_mode):
            raise OSError(errno.ENOTSOCK, "it is not a socket")
        if status.st_uid != owner:
            raise NotOwnedError(status.st_uid, owner)
        connection.settimeout(seconds)
        connection.connect(f"/proc/self/fd/{looked}")
        _, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != owner:
            raise NotOwnedError(uid, owner)
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(looked)
    return connection
