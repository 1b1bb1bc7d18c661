"""Asks a dcgm-exporter. The answer is untrusted, bounded in size and in time.

Plain HTTP/1.0 over the socket: the standard library's client bounds each wait but not their sum, and
follows redirects to wherever the answer points.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from rankwatch_agent.runtime.config.error import ConfigError
from rankwatch_agent.runtime.connect import dial, seconds_left
from rankwatch_agent.runtime.errors import CollectError

MAX_ANSWER_BYTES = 16 << 20
"""Sixteen GPUs with every field of DCGM and the labels of their pods stay below 5 MB. It is held twice."""
_MAX_HEAD_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 18
_USER = re.compile(r"//[^/@]*@")


class Endpoint(NamedTuple):
    """Where to ask."""

    host: str
    port: int
    target: str
    """Path and query."""
    encrypted: bool

    def __str__(self) -> str:
        scheme = "https" if self.encrypted else "http"
        return f"{scheme}://{self.host}:{self.port}{self.target}"


def parse_endpoint(url: str) -> Endpoint:
    """The parts of an http or https URL; raises ConfigError."""
    expected = "a URL such as http://localhost:9400/metrics, without a user and without spaces"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise ConfigError("dcgm_endpoint", _without_password(url), expected) from None
    sound = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError("dcgm_endpoint", _without_password(url), expected)
    target = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(parts.hostname or "", port, target, parts.scheme == "https")


def _without_password(url: str) -> str:
    return _USER.sub("//...@", url)


def fetch(endpoint: Endpoint, timeout_seconds: float) -> bytes:
    """The body of the answer, which has to come as a whole in time; raises CollectError."""
    try:
        head, body = _exchange(endpoint, time.monotonic() + timeout_seconds)
    except OSError as error:
        raise CollectError(f"could not ask {endpoint}: {error}") from None
    status, *lines = head.decode("latin-1").split("\r\n")
    words = status.split()
    if len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise CollectError(f"could not ask {endpoint}: the answer is no HTTP")
    if words[1] != "200":
        raise CollectError(f"could not ask {endpoint}: it answered with status {words[1]!r:.20}")
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if fields.get("transfer-encoding", "identity") != "identity" or "content-encoding" in fields:
        raise CollectError(f"could not read {endpoint}: the answer is encoded in a way nobody asked for")
    if fields.get("content-length", str(len(body))) != str(len(body)):
        raise CollectError(f"could not read {endpoint}: the answer was cut off at {len(body)} bytes")
    return body


def _exchange(endpoint: Endpoint, deadline: float) -> tuple[bytes, bytes]:
    """Head and body; raises OSError, CollectError where the answer is too long."""
    answer = bytearray()
    with _connect(endpoint, deadline) as connection:
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        request = (
            f"GET {endpoint.target} HTTP/1.0\r\nHost: {host}:{endpoint.port}\r\nAccept: text/plain\r\n\r\n"
        )
        connection.sendall(request.encode("ascii"))
        while True:
            connection.settimeout(seconds_left(deadline))
            chunk = connection.recv(_CHUNK_BYTES)
            if not chunk:
                break
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES:
                raise CollectError(f"could not read {endpoint}: more than {MAX_ANSWER_BYTES} bytes")
    end = answer.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
    if end < 0:
        raise CollectError(f"could not ask {endpoint}: the answer is no HTTP")
    return bytes(answer[:end]), bytes(memoryview(answer)[end + 4 :])


def _connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    connection = dial(endpoint.host, endpoint.port, deadline)
    if not endpoint.encrypted:
        return connection
    try:
        connection.settimeout(seconds_left(deadline))
        return ssl.create_default_context().wrap_socket(connection, server_hostname=endpoint.host)
    except OSError:
        connection.close()
        raise
