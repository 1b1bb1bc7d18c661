"""Whose process answers on a TCP connection within this node, on whose ports any user may listen."""

from __future__ import annotations

import ipaddress
import socket
import sys
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_MOST_SOCKETS = 1 << 17
"""Lines of a table that are read, in a quarter of a second."""
_MAPPED = "0000000000000000" + f"{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"
"""How an IPv4 address begins where a socket of IPv6 has it."""


class Peer(NamedTuple):
    """The other end of a connection."""

    on_node: bool
    user: int | None = None
    """User id of a process on this node; None where it cannot be told."""


def peer_of(connection: socket.socket, procfs: Path) -> Peer:
    """The other end, which must have answered already: only then has its process accepted the connection.

    procfs: shows the network namespace of this process itself. Raises OSError where the connection is gone.
    """
    theirs, ours = connection.getpeername()[:2], connection.getsockname()[:2]
    if theirs[0] != ours[0] and not ipaddress.ip_address(theirs[0]).is_loopback:
        return Peer(on_node=False)
    ends = f"{_place(*theirs)} {_place(*ours)}"
    mapped = f"{_MAPPED}{_place(*theirs)} {_MAPPED}{_place(*ours)}"
    for table in ("tcp", "tcp6"):
        user = _user_of((ends, mapped), procfs / "self" / "net" / table)
        if user is not None:
            return Peer(on_node=True, user=user)
    return Peer(on_node=True)


def _place(host: str, port: int) -> str:
    """An address as the kernel writes it: each four bytes as one number of the processor."""
    packed = ipaddress.ip_address(host).packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{each:08X}' for each in words)}:{port:04X}"


def _user_of(ends: tuple[str, ...], table: Path) -> int | None:
    """The user of the socket with these ends. One that no process has any more says user 0 and inode 0."""
    try:
        with table.open(encoding="ascii", errors="replace") as lines:
            for line in islice(lines, _MOST_SOCKETS):
                if any(each in line for each in ends):
                    fields = line.split()
                    return int(fields[7]) if fields[9] != "0" else None
    except (OSError, ValueError, IndexError):
        return None
    return None
