"""Servers of the standard library that answer for the length of a block."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[str]:
    """Yields `host:port`, and closes the server at the end."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def listening_at(path: Path, backlog: int = 8) -> Iterator[socket.socket]:
    """A unix socket that takes connections; what is said on them is up to the block."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(backlog)
        yield server


class Handler(BaseHTTPRequestHandler):
    """One that logs nothing. `answer` answers GET, POST and PUT."""

    def answer(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def received(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def head(self, length: int, status: int = 200, **fields: str) -> None:
        """Send all but the body of an answer; it is text."""
        self.send_response(status)
        fields = {"Content-Type": "text/plain; version=0.0.4", "Content-Length": str(length), **fields}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()

    def reply(self, body: bytes = b"", status: int = 200) -> None:
        """Send an answer of text."""
        self.head(len(body), status)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def serving_http(handler: type[Handler]) -> AbstractContextManager[str]:
    """Likewise, on a free port."""
    return serving(ThreadingHTTPServer(("127.0.0.1", 0), handler))
