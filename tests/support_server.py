"""A server with given routes, running while a test does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rankwatch_agent.serving.server import MetricsServer, Route, join_address
from rankwatch_agent.serving.tls import TlsContext


@contextmanager
def serving(
    routes: Mapping[str, Route],
    *,
    max_requests: int = 4,
    timeout: float = 60.0,
    tls: TlsContext | None = None,
) -> Iterator[tuple[MetricsServer, str]]:
    """The server and its HOST:PORT, on a free port of loopback."""
    server = MetricsServer(
        ("127.0.0.1", 0), routes, max_requests=max_requests, request_timeout_seconds=timeout, tls=tls
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server, join_address(*server.listening_address())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
