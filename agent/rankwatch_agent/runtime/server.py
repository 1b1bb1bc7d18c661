"""The HTTP server of the agent: limited in requests, connections and time, with TLS where it is set up."""

from __future__ import annotations

import errno
import logging
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, NamedTuple

from rankwatch_agent.runtime.connections import Connections, client_of
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.reread import Reread

logger = logging.getLogger(__name__)

EXHAUSTED_SECONDS = 0.1
"""Pause before the next connection is accepted when file descriptors have run out."""

_ACCEPTED_AT_ONCE = 8
_LONGEST_HEADER = 1 << 16
"""Bytes; a longer one is left to its thread, which refuses it."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})

TlsContext = Reread[ssl.SSLContext]
"""The TLS context for the next connection; a new one after its files have changed."""


class Page(NamedTuple):
    """A response: status, body, headers besides Content-Length."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str]


class Route(NamedTuple):
    """How a path is answered."""

    answer: Callable[[Message], Page]
    """From the headers of the request to the page."""
    bounded: bool = True
    """True if it counts as a concurrent request. A liveness probe must not: a busy node is alive."""


class MetricsServer(ThreadingHTTPServer):
    """Serves the routes. Each connection carries one request.

    A connection gets a thread once the header of its request is there. Until then it costs next to nothing,
    so that silent clients, however many, do not hold up the others.
    """

    daemon_threads = True
    block_on_close = False
    # Long, because a client whose connection does not fit tries again only after a second.
    request_queue_size = 1024

    def __init__(
        self,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        *,
        max_requests: int,
        request_timeout_seconds: float,
        tls: TlsContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind and listen. Raises UserError for an address that cannot be used.

        tls: None serves plain HTTP. monotonic: the clock, in seconds, that limits the life of connections.
        """
        self.routes = routes
        self.connections = Connections(
            max_requests=max_requests, life_seconds=request_timeout_seconds, monotonic=monotonic
        )
        self._tls = tls
        self._waiting: dict[int, tuple[socket.socket, Any]] = {}
        """Connections without a whole header, and their clients, by descriptor."""
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._stopped.set()
        try:
            self.address_family = _family(*address)
            super().__init__(address, _Connection)
        except OSError as error:
            raise UserError(
                f"could not listen on {join_address(*address)}: {error.strerror or error}"
            ) from None

    def listening_address(self) -> tuple[str, int]:
        """Return the host and port that are bound."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which can take seconds and is never used."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.listening_address()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return the next connection. Its TLS handshake follows in the thread of the connection."""
        try:
            connection, address = super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the connection stays in the queue, so a retry at once would spin
                time.sleep(EXHAUSTED_SECONDS)
            raise
        if self._tls is None:
            return connection, address
        try:
            return self._tls.current().wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            ), address
        except OSError:  # gone already; the accept loop goes on
            connection.close()
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection; runs in its thread."""
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
        super().finish_request(request, client_address)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Accept connections and start their threads, until `shutdown`."""
        self._stopped.clear()
        self.socket.setblocking(False)
        try:
            with select.epoll() as poller:
                poller.register(self.fileno(), select.EPOLLIN)
                while not self._stopping.is_set():
                    for descriptor, events in poller.poll(poll_interval):
                        if descriptor == self.fileno():
                            self._accept(poller)
                        else:
                            self._read_on(poller, descriptor, events)
                    self.connections.cut_overdue()
        finally:
            for request, _ in self._waiting.values():
                self.shutdown_request(request)
            self._waiting.clear()
            self._stopping.clear()
            self._stopped.set()

    def shutdown(self) -> None:
        """Stop the loop of `serve_forever` and wait for its end."""
        self._stopping.set()
        self._stopped.wait()

    def _accept(self, poller: select.epoll) -> None:
        """Take the connections that have come, a number of them at a time."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                request, address = self.get_request()
            except OSError:
                return  # all are taken, or one has gone already
            try:
                admitted = self.connections.admit(request, client_of(address[0], request.getsockname()[0]))
            except OSError:
                admitted = False
            if not admitted:
                self.shutdown_request(request)
                continue
            request.setblocking(False)
            self._waiting[request.fileno()] = request, address
            poller.register(request.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
            # Most have sent their request by now; the next connections must not take such a one for silent.
            self._read_on(poller, request.fileno(), 0)

    def _read_on(self, poller: select.epoll, descriptor: int, events: int) -> None:
        """Look at what a client has sent: start its thread, wait for more, or close the connection."""
        if descriptor not in self._waiting:
            return  # an event from before it got its thread
        request, address = self._waiting[descriptor]
        try:
            sent = socket.socket.recv(request, _LONGEST_HEADER, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            sent = b""
        whole = isinstance(request, ssl.SSLSocket) or len(sent) == _LONGEST_HEADER
        whole = whole or b"\r\n\r\n" in sent or b"\n\n" in sent
        ended = not sent or events & select.EPOLLHUP or (events & select.EPOLLRDHUP and not whole)
        if not ended and not whole:
            return
        poller.unregister(descriptor)
        del self._waiting[descriptor]
        if ended:  # by the client, or because it was cut
            self.shutdown_request(request)
            return
        if not isinstance(request, ssl.SSLSocket):
            self.connections.asked(request)
        request.setblocking(True)
        try:
            self.process_request(request, address)
        except RuntimeError:  # no thread can be started
            self.handle_error(request, address)
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, whatever ended its thread."""
        self.connections.release(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed request. A client that went away or was cut is not an error."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        logger.log(level, "could not answer a request from %s", client_address, exc_info=True)


class _Connection(BaseHTTPRequestHandler):
    server: MetricsServer

    def parse_request(self) -> bool:
        """Parse the request line and the headers; then the client is no longer a silent one."""
        valid = super().parse_request()
        self.server.connections.asked(self.connection)
        return valid

    def do_GET(self) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            self._send(plain_page(HTTPStatus.NOT_FOUND, "not found; see / for what there is"))
        elif not route.bounded:
            self._send(route.answer(self.headers))
        elif not self.server.connections.begin_answer(self.connection):
            self._send(plain_page(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at the same time"))
        else:
            try:
                self._send(route.answer(self.headers))
            finally:
                self.server.connections.end_answer(self.connection)

    do_HEAD = do_GET  # noqa: N815  the name http.server looks for

    def __getattr__(self, name: str) -> Callable[[], None]:
        # http.server looks for do_<METHOD> and answers 501 if there is none; 405 is the right status.
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def version_string(self) -> str:
        return "rankwatch"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        logger.debug("%s %s", self.address_string(), format % args)

    def _refuse(self) -> None:
        page = plain_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        self._send(page._replace(headers={**page.headers, "Allow": "GET, HEAD"}))

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)


def plain_page(status: HTTPStatus, text: str) -> Page:
    """Return a page of plain text that ends in one newline."""
    return Page(status, f"{text}\n".encode(), {"Content-Type": "text/plain; charset=utf-8"})


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def build_tls(*, certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsContext | None:
    """Return the TLS context of the server; None without a certificate. Raises UserError for an unusable
    file.

    With `client_ca`, only clients with a certificate of these authorities may connect, to any page. The
    kubelet has none: give the probes a listener of their own.
    """
    if certificate is None or key is None:
        return None
    files = [certificate, key, *([] if client_ca is None else [client_ca])]
    return Reread(files, lambda: load_context(certificate=certificate, key=key, client_ca=client_ca))


def load_context(*, certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Return a server context for TLS 1.2 and newer. Raises UserError that names the files and the fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password, OpenSSL asks the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise UserError(
            f"could not use tls_certificate {certificate} with tls_key {key}: {_reason(error)}"
        ) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(cafile=client_ca)
        except OSError as error:
            raise UserError(f"could not use tls_client_ca {client_ca}: {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file of this kind").replace("_", " ").lower()
    return error.strerror or str(error)


def _family(host: str, port: int) -> socket.AddressFamily:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return found[0][0]
