"""HTTP requests with one deadline for everything, to servers that are not trusted.

The timeout of a socket is that of one read: a server that sends a byte a second never meets it. No redirect
is followed: that would take credentials, or what the answer is trusted for, to whatever address the server
names.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    """The answer to a request, whatever its status."""

    status: int
    reason: str
    headers: Message
    body: bytes


def ask(
    url: str,
    *,
    seconds: float,
    most_bytes: int,
    method: str = "GET",
    headers: Mapping[str, str] = MappingProxyType({}),
    body: bytes | None = None,
) -> Reply:
    """Ask a server directly, whatever proxies the environment names.

    seconds: for everything. Raises TimeoutError, other OSErrors, HTTPException for an answer that is not HTTP
    or is cut off, and ValueError for one of more than `most_bytes`.
    """
    end = time.monotonic() + seconds
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    connection = (HTTPSConnection if secure else HTTPConnection)(parts.hostname or "", parts.port)
    connection.sock = place = connect_tcp(connection.host, connection.port, end)
    too_late = threading.Event()

    def cut() -> None:
        too_late.set()
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown, which drops the TLS state that the other thread still uses.
            socket.socket.shutdown(place, socket.SHUT_RDWR)

    late = threading.Timer(end - time.monotonic(), cut)
    late.daemon = True
    late.start()
    try:
        if secure:
            context = ssl.create_default_context()
            connection.sock = place = context.wrap_socket(
                place, server_hostname=parts.hostname, do_handshake_on_connect=False
            )
            place.do_handshake()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body, {"Connection": "close", **headers})
        with connection.getresponse() as answer:
            found = Reply(answer.status, answer.reason, answer.headers, answer.read(most_bytes + 1))
            if len(found.body) <= most_bytes and answer.length:
                raise IncompleteRead(found.body, answer.length)
    except (OSError, HTTPException):
        if not too_late.is_set():
            raise
    finally:
        late.cancel()
        connection.close()
    if too_late.is_set():  # the half of an answer may have been taken for the whole
        raise TimeoutError("timed out")
    if len(found.body) > most_bytes:
        raise ValueError(f"more than {most_bytes} bytes")
    return found


def ask_by_proxies(
    url: str,
    *,
    seconds: float,
    most_bytes: int,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: bytes | None = None,
) -> Reply:
    """Ask as `ask` does, through the proxies that the environment names; by POST where there is a body.

    A request that is late is left behind, in a thread of its own.
    """
    from urllib import request  # which no rank needs
    from urllib.error import URLError

    opener = request.OpenerDirector()  # without handlers of redirects and errors: each answer is a reply
    for kind in (request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.UnknownHandler):
        opener.add_handler(kind())
    found: Future[Reply] = Future()

    def asking() -> None:
        try:
            with opener.open(request.Request(url, body, dict(headers)), timeout=seconds) as answer:
                content = answer.read(most_bytes + 1)
                if len(content) > most_bytes:
                    raise ValueError(f"more than {most_bytes} bytes")
                found.set_result(Reply(answer.status, answer.reason, answer.headers, content))
        except URLError as error:
            found.set_exception(error.reason if isinstance(error.reason, OSError) else OSError(error.reason))
        except (OSError, HTTPException, ValueError) as error:
            found.set_exception(error)

    threading.Thread(target=asking, daemon=True).start()
    return found.result(seconds)


def connect_tcp(host: str, port: int, end: float) -> socket.socket:
    """Return a connection to the first address of the host that accepts one.

    end: deadline for all addresses together, in monotonic seconds. Raises OSError, and
    ConnectionRefusedError only if every address refuses.
    """
    failure: OSError = ConnectionRefusedError("the host has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(seconds_left(end))
            connection.connect(place)
        except OSError as error:
            connection.close()
            if isinstance(failure, ConnectionRefusedError):
                failure = error
        else:
            return connection
    raise failure


def seconds_left(end: float) -> float:
    """Return the seconds until `end`, in monotonic seconds. Raises TimeoutError once it has passed."""
    left = end - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("timed out")
    return left
