"""Requests over TLS. The tests of the collector `dcgm` have those without."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from rankwatch.untrusted.http_client import Reply, ask, ask_by_proxies

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


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Host and port of a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serving(context) as place:
        yield f"https://{place}"


Post = Callable[[str, float, int, bytes], Reply]


def post(url: str, seconds: float, most_bytes: int, body: bytes) -> Reply:
    return ask(url, seconds=seconds, most_bytes=most_bytes, method="POST", body=body)


def post_by_proxies(url: str, seconds: float, most_bytes: int, body: bytes) -> Reply:
    return ask_by_proxies(url, seconds=seconds, most_bytes=most_bytes, body=body)


both = pytest.mark.parametrize("post", [post, post_by_proxies])


@both
def test_answer_and_redirect(post: Post, address: str) -> None:
    """A redirect is an answer like any other, and the body is whole."""
    for path, status in (("", 200), ("/moved", 302)):
        reply = post(f"{address}{path}", 20.0, 4, b"four")
        assert (reply.status, reply.body) == (status, b"four")


@both
def test_endless_and_large_answers(post: Post, address: str) -> None:
    """Both are given up: after the deadline, and at the first byte too many."""
    with pytest.raises(TimeoutError):
        post(f"{address}/drips", SECONDS, 1 << 20, b"")
    with pytest.raises(ValueError, match="more than 3 bytes"):
        post(address, 20.0, 3, b"four")


def test_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy that the environment names is asked, and one of another kind is told as such."""
    monkeypatch.delenv("no_proxy", raising=False)
    url = "http://prometheus.invalid/"
    with serving() as place:
        monkeypatch.setenv("http_proxy", f"http://{place}")
        assert post_by_proxies(url, 20.0, 4, b"four").body == b"four"
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(OSError, match="socks5"):
        post_by_proxies(url, 20.0, 4, b"four")
