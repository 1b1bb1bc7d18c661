"""Client of a RAS service. The answer is untrusted and bounded in size and time.

The protocol is that of NCCL's own client `ncclras`: lines of text over TCP. After a greeting with a version,
each command is answered with OK or ERROR; STATUS is answered with the report, after which the service closes
the connection. NCCL 2.28.7 and newer understand `SET FORMAT json`; older ones answer with a text for people.

Within this node any user may listen on a port, so the answer says whose process gave it.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import time
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rankwatch.settings import FieldError
from rankwatch.untrusted.http_client import connect_tcp, seconds_left
from rankwatch_agent.runtime.errors import CollectError, NotApplicable

AUTO = "auto"
DEFAULT_PORT = 28028
"""NCCL's default, where NCCL_RAS_ADDR is not set."""
MAX_ADDRESSES = 8
"""More jobs do not share a node: each has at least one GPU."""


class Address(NamedTuple):
    """The address of a RAS service."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """True for a loopback address: every node of a job then has such a service."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


def parse_addresses(texts: tuple[str, ...]) -> tuple[Address, ...]:
    """Parse `auto` or HOST:PORT, as in NCCL_RAS_ADDR; each address once. Raises FieldError."""
    found = tuple(dict.fromkeys(_parse(text) for text in texts))
    if len(found) > MAX_ADDRESSES:
        raise FieldError("nccl_ras_address", ",".join(texts), f"at most {MAX_ADDRESSES} addresses")
    return found


def _parse(text: str) -> Address:
    if text == AUTO:
        return Address("localhost", DEFAULT_PORT)
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") == host.endswith("]") and (":" not in bare or host.startswith("["))
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    sound = bare.isascii() and bare.isprintable() and " " not in bare and bare != "" and len(bare) < 254
    if not (bracketed and sound and 0 < number < 65536):
        raise FieldError("nccl_ras_address", text, f"{AUTO} or HOST:PORT, separated by commas")
    try:
        bare.encode("idna")
    except UnicodeError:
        raise FieldError("nccl_ras_address", text, f"{AUTO} or HOST:PORT") from None
    return Address(bare, number)


MAX_ANSWER_BYTES = 48 << 20
"""A rank takes about 600 bytes per communicator: room for 16,384 ranks in four of them."""
_MAX_LINE_BYTES = 4096
_CHUNK_BYTES = 1 << 18
_PROTOCOL = 2
_LEG_SECONDS = 5
"""How long RAS waits for a process that does not answer, where time allows. NCCL's default."""
_EXTRA_SECONDS = 6.0
"""RAS may take five seconds longer than that, and the answer needs time to arrive."""


class Answer(NamedTuple):
    """The answer of RAS."""

    json: bool
    """True for the structured form, False for the text for people."""
    body: bytearray
    peer: Peer
    """Who gave it."""


def ask(address: Address, timeout_seconds: float, procfs: Path = Path("/proc")) -> Answer:
    """Return the status of the job. `timeout_seconds` limits the whole exchange.

    procfs: as this process sees it, whose connection it is.

    Raises NotApplicable where nothing listens, CollectError where the service gives no status.
    """
    end = time.monotonic() + timeout_seconds
    try:
        with connect_tcp(*address, end) as connection:
            return _exchange(_Lines(connection, end, address), timeout_seconds, procfs)
    except ConnectionRefusedError:
        raise NotApplicable(f"nothing listens on {address}") from None
    except OSError as error:
        raise CollectError(f"could not ask NCCL RAS on {address}: {error}") from None


def _exchange(lines: _Lines, timeout_seconds: float, procfs: Path) -> Answer:
    greeting = lines.ask(f"CLIENT PROTOCOL {_PROTOCOL}")
    if not greeting.upper().startswith(b"SERVER PROTOCOL "):
        raise CollectError(f"could not ask NCCL RAS on {lines.address}: it is another service")
    peer = peer_of(lines.connection, procfs)
    leg = max(1, min(_LEG_SECONDS, int(timeout_seconds - _EXTRA_SECONDS)))
    if lines.ask(f"TIMEOUT {leg}").upper() != b"OK":
        raise CollectError(f"could not ask NCCL RAS on {lines.address}: it refuses a timeout")
    if lines.ask("SET FORMAT json").upper() == b"OK":
        return Answer(True, lines.ask_until_closed("STATUS"), peer)
    # Without VERBOSE, few of the ranks that differ are listed.
    return Answer(False, lines.ask_until_closed("VERBOSE STATUS"), peer)


class _Lines:
    """One connection, with one deadline for everything."""

    def __init__(self, connection: socket.socket, end: float, address: Address) -> None:
        self.address = address
        self.connection = connection
        self._end = end
        self._read = bytearray()

    def ask(self, command: str) -> bytes:
        """Send a command and return the line that answers it. Raises OSError, CollectError."""
        self._send(command)
        while b"\n" not in self._read:
            if len(self._read) > _MAX_LINE_BYTES or not self._receive():
                raise CollectError(f"could not ask NCCL RAS on {self.address}: no answer to {command}")
        line, _, rest = self._read.partition(b"\n")
        self._read = rest
        return bytes(line.strip())

    def ask_until_closed(self, command: str) -> bytearray:
        """Send a command and return everything until the service closes. Raises OSError, CollectError."""
        self._send(command)
        while self._receive():
            if len(self._read) > MAX_ANSWER_BYTES:
                raise CollectError(
                    f"could not read NCCL RAS on {self.address}: more than {MAX_ANSWER_BYTES} bytes"
                )
        return self._read

    def _send(self, command: str) -> None:
        self.connection.settimeout(seconds_left(self._end))
        self.connection.sendall(command.encode("ascii") + b"\n")

    def _receive(self) -> bool:
        self.connection.settimeout(seconds_left(self._end))
        chunk = self.connection.recv(_CHUNK_BYTES)
        self._read += chunk
        return bool(chunk)


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
    """Return the other end, which must have answered: only then has its process accepted the connection.

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
    """Return an address as the kernel writes it: each four bytes as one number of the processor."""
    packed = ipaddress.ip_address(host).packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{each:08X}' for each in words)}:{port:04X}"


def _user_of(ends: tuple[str, ...], table: Path) -> int | None:
    """Return the user of the socket with these ends. One that no process has any more says user 0, inode
    0."""
    try:
        with table.open(encoding="ascii", errors="replace") as lines:
            for line in islice(lines, _MOST_SOCKETS):
                if any(each in line for each in ends):
                    fields = line.split()
                    return int(fields[7]) if fields[9] != "0" else None
    except (OSError, ValueError, IndexError):
        return None
    return None
