"""A metrics server with given routes, for the length of a test."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rankwatch_agent.runtime.server import MetricsServer, Route, TlsContext, join_address
from support.agent.process import ManualClock, until

TIMEOUT_SECONDS = 60.0
"""Longest life of a connection to `serving`, on the server's clock."""


@contextmanager
def serving(
    routes: Mapping[str, Route],
    *,
    max_requests: int = 4,
    tls: TlsContext | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[MetricsServer, str]]:
    """The server and its HOST:PORT, on a free port of loopback."""
    server = MetricsServer(
        ("127.0.0.1", 0),
        routes,
        max_requests=max_requests,
        request_timeout_seconds=TIMEOUT_SECONDS,
        tls=tls,
        monotonic=monotonic,
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server, join_address(*server.listening_address())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def outlive(client: socket.socket, clock: ManualClock, *, seconds: float = TIMEOUT_SECONDS) -> None:
    """Advance the server's clock by twice these seconds until it has closed the connection.

    More than once, because the time of a connection starts when the server accepts it.
    """
    readable = select.poll()  # select() fails above descriptor 1,023
    readable.register(client, select.POLLIN)

    def cut() -> bool:
        clock.now += 2 * seconds
        return bool(readable.poll(20))

    until(cut, "the client is cut off")
