"""A small real OTLP/HTTP receiver on loopback, which can also misbehave as receivers do."""

from __future__ import annotations

import contextlib
import gzip
import ssl
import threading
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Mode(Enum):
    """What the receiver does with a request."""

    ACCEPT = auto()
    UNAVAILABLE = auto()
    TOO_MANY = auto()
    """Asks to be left alone for `retry_after`."""
    TOO_LARGE = auto()
    """Refuses what has more than `most` bytes, and accepts the rest."""
    INVALID = auto()
    """Refuses this request for good."""
    NOT_FOUND = auto()
    REDIRECT = auto()
    HANG = auto()
    """Reads the request and never answers."""
    DRIBBLE = auto()
    """Answers with a byte now and then, without an end."""
    GARBAGE = auto()
    """Answers with something that is not HTTP."""
    ENDLESS = auto()
    """Accepts, with a body that never ends."""


_STATUS = {
    Mode.ACCEPT: 200,
    Mode.UNAVAILABLE: 503,
    Mode.TOO_MANY: 429,
    Mode.TOO_LARGE: 200,
    Mode.INVALID: 400,
    Mode.NOT_FOUND: 404,
    Mode.REDIRECT: 308,
}


class Receiver(ThreadingHTTPServer):
    """`mode` may change at any time."""

    daemon_threads = True
    block_on_close = False
    path = "/"
    answer = b""
    """The body of its answers."""

    def __init__(self, mode: Mode, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.mode = mode
        self.requests = 0
        self.retry_after = "1"
        self.most = 1 << 20
        self.scheme = "http"
        self.released = threading.Event()
        super().__init__(address, _Receiving)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}{self.path}"

    def receive(self, headers: Mapping[str, str], body: bytes, *, refused: bool) -> None:
        """Take a request. refused: the answer will say no."""
        raise NotImplementedError

    def secure(self, context: ssl.SSLContext) -> None:
        """Speak TLS."""
        self.scheme = "https"
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Some tests are about clients that break off."""

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Answer requests for the length of the block."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.released.set()
            self.shutdown()
            self.server_close()
            thread.join()


class _Receiving(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        mode = server.mode
        server.requests += 1
        status = 413 if mode is Mode.TOO_LARGE and len(body) > server.most else _STATUS.get(mode, 0)
        server.receive(dict(self.headers), body, refused=status >= 300)
        if mode is Mode.HANG:
            server.released.wait()
        elif mode is Mode.DRIBBLE:
            self._dribble()
        elif mode is Mode.GARBAGE:
            self.wfile.write(b"\x00\xff no HTTP \r\n")
        elif mode is Mode.ENDLESS:
            self._endless()
        else:
            self._answer(mode, status)

    def _answer(self, mode: Mode, status: int) -> None:
        self.send_response(status)
        if mode is Mode.REDIRECT:
            self.send_header("Location", f"https://elsewhere.example{self.server.path}")
        if mode is Mode.TOO_MANY:
            self.send_header("Retry-After", self.server.retry_after)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def _dribble(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self.server.released.wait(0.05):
            self.wfile.write(b"x")

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.released.wait(0.001):
            self.wfile.write(b"x" * 1024)

    def log_message(self, *args: object) -> None:
        """Quiet."""
