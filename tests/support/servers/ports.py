"""Loopback ports that are promised to a server which has yet to start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of loopback that the kernel gives to nobody who asks for any port, until the block ends.

    A server that is told its number can listen on it all the same, if it sets SO_REUSEADDR: Prometheus,
    Alertmanager and the store of torch do. A port that was only looked up may be gone when they come to it,
    seconds later.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port
