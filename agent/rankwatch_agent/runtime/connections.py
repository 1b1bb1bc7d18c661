"""The open connections of a server, shared between its clients so that none of them can shut out the others.

A client that connects and stays silent holds a thread and a place. So a request must be complete within a few
seconds, no client gets more than its share, and where places run out the longest silent connection gives way.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

logger = logging.getLogger(__name__)

SLOW_SECONDS = 2.0
"""Longest time from the connect to the end of the request's header, TLS handshake included. A connection that
is older gives way to a new one even while its response is sent."""
CONNECTIONS_PER_REQUEST = 4
"""Open connections for each request allowed."""
CLIENT_SHARE = 4
"""One client gets at most one in this many of the connections and of the requests."""
MIN_SHARE = 4
"""But a client always gets this many."""
LOCAL = "local"
"""The client of all connections from this machine: a local user may connect from any of its addresses."""
_SITE_BITS = 64
"""A machine commonly has a whole IPv6 network of this length."""


@dataclass(slots=True)
class _Open:
    client: str
    since: float
    asked: bool = False
    """True once the header of its request is complete."""
    answering: bool = False
    """True while its request counts as one being answered."""


class Connections:
    """Admits connections, cuts overdue ones, and counts the requests that are being answered. Thread-safe.

    max_requests: answered at the same time. life_seconds: of a connection, from its beginning to its end.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        life_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_requests = max_requests
        self._life_seconds = life_seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Open] = {}  # the oldest first

    def admit(self, connection: socket.socket, client: str) -> bool:
        """Take a new connection; False if there is no place, which only requests in progress can cause."""
        with self._lock:
            if not self._has_room(self._open, client, self._max_requests * CONNECTIONS_PER_REQUEST):
                return False
            self._open[connection] = _Open(client, self._monotonic())
            return True

    def release(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)

    def asked(self, connection: socket.socket) -> None:
        """Note that the header of its request is complete."""
        with self._lock:
            if connection in self._open:
                self._open[connection].asked = True

    def begin_answer(self, connection: socket.socket) -> bool:
        """Count a request as being answered; False if there are too many, of all clients or of this one."""
        with self._lock:
            own = self._open.get(connection)
            answering = {key: each for key, each in self._open.items() if each.answering}
            if own is None or not self._has_room(answering, own.client, self._max_requests):
                return False
            own.answering = True
            return True

    def end_answer(self, connection: socket.socket) -> None:
        """Take back what `begin_answer` counted."""
        with self._lock:
            if connection in self._open:
                self._open[connection].answering = False

    def cut_overdue(self) -> None:
        """Cut the connections past their time."""
        now = self._monotonic()
        with self._lock:
            for connection, each in self._open.items():
                if now - each.since > (self._life_seconds if each.asked else SLOW_SECONDS):
                    _cut(connection)

    def _has_room(self, places: Mapping[socket.socket, _Open], client: str, most: int) -> bool:
        """Return True if `client` may take one of `most` places, after a slow connection has left if need be.

        A client beyond its share gives way itself; where all places are taken, the client with most of them.
        """
        taken = Counter(each.client for each in places.values())
        if taken[client] >= max(MIN_SHARE, most // CLIENT_SHARE):
            return self._displace(places, client)
        return len(places) < most or self._displace(places, max(taken, key=lambda each: taken[each]))

    def _displace(self, places: Mapping[socket.socket, _Open], client: str) -> bool:
        """Cut the client's oldest connection that is silent or slow; False if it has none."""
        late = self._monotonic() - SLOW_SECONDS
        for connection, each in places.items():
            if each.client == client and (not each.asked or each.since < late):
                del self._open[connection]
                _cut(connection)
                return True
        return False


def client_of(peer: str, own: str) -> str:
    """Return what counts as one client: this machine, an IPv4 address, or an IPv6 network of 64 bits.

    peer, own: the addresses of both ends of the connection.
    """
    address = ip_address(peer.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or peer == own:
        return LOCAL
    if isinstance(address, IPv6Address):
        return str(ip_network((address, _SITE_BITS), strict=False))
    return str(address)


def _cut(connection: socket.socket) -> None:
    try:
        # Not SSLSocket.shutdown, which drops the TLS state that the connection's thread still uses.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        logger.debug("a connection past its time was closed by its client")
