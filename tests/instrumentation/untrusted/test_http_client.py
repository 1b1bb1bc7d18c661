"""Requests over TLS. The tests of the collector `dcgm` have those without."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from rankwatch.untrusted.http_client import ask

SECONDS = 0.3
"""Deadline of a request that is to miss it."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        self.wfile.write(body)
        while self.path == "/drips":
            self.wfile.write(b".")
            time.sleep(SECONDS / 10)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_answer_and_redirect(address: str) -> None:
    """A redirect is an answer like any other, and the body is whole."""
    for path, status in (("", 200), ("/moved", 302)):
        reply = ask(f"{address}{path}", seconds=20.0, most_bytes=4, method="POST", body=b"four")
        assert (reply.status, reply.body) == (status, b"four")


def test_endless_and_large_answers(address: str) -> None:
    """Both are given up: after the deadline, and at the first byte too many."""
    with pytest.raises(TimeoutError, match="timed out"):
        ask(f"{address}/drips", seconds=SECONDS, most_bytes=1 << 20, method="POST", body=b"")
    with pytest.raises(ValueError, match="more than 3 bytes"):
        ask(address, seconds=20.0, most_bytes=3, method="POST", body=b"four")
