"""One deadline for everything that is done on a connection, or to get an answer."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from http.client import HTTPException
from typing import TypeVar

Answer = TypeVar("Answer")


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """For `build_opener`: a redirect is an error with its status.

    To follow it would take credentials, or what the answer is trusted for, to whatever address the server
    names. Mostly it leads to a page for people to log in.
    """

    def redirect_request(self, *_: object) -> None:
        """None: nothing is followed."""


def connect_tcp(host: str, port: int, end: float) -> socket.socket:
    """A connection to the first address of the host that accepts one.

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
    """Seconds until `end`, in monotonic seconds. Raises TimeoutError once it has passed."""
    left = end - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("timed out")
    return left


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """What `ask` returns or raises: OSError, HTTPException, ValueError or RecursionError.

    Raises TimeoutError after `seconds`, and leaves `ask` behind. The timeout of a socket is that of one read:
    a server that sends a byte a second never meets it.
    """
    found: Future[Answer] = Future()

    def asking() -> None:
        try:
            found.set_result(ask())
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            found.set_exception(error)

    threading.Thread(target=asking, daemon=True).start()
    return found.result(seconds)
