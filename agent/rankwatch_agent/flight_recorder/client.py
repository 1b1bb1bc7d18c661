"""Asks a rank's worker server. The reply is untrusted, bounded in size and in time."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import msgspec

from rankwatch_agent.collection import AgentError
from rankwatch_agent.flight_recorder.reply import Reply, decode, decode_names

MAX_REPLY_BYTES = 64 << 20
"""2,000 entries are about 1 MB; a ring of 100,000 still fits."""
_HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
"""Names of the handler in torch 2.13 and before."""


class FlightRecorderError(AgentError):
    """The flight recorder could not be read; the message says why."""


class FlightRecorderClient:
    """The worker server of one rank.

    timeout_seconds: for each wait on the socket.
    """

    def __init__(self, path: Path, *, timeout_seconds: float = 5.0) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._handler: str | None = None

    def pull(self) -> Reply:
        """The flight recorder as it stands; raises FlightRecorderError."""
        try:
            if self._handler is None:
                self._handler = self._find_handler()
            return decode(self._ask("POST", f"/handler/{self._handler}"))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise FlightRecorderError(f"could not read {self._path}: {error}") from error

    def _find_handler(self) -> str:
        names = decode_names(self._ask("GET", "/handler/"))
        for name in _HANDLERS:
            if name in names:
                return name
        raise FlightRecorderError(f"could not read {self._path}: no handler {' or '.join(_HANDLERS)}")

    def _ask(self, method: str, target: str) -> bytes:
        connection = _UnixConnection(self._path, self._timeout_seconds)
        try:
            connection.request(method, target)
            response = connection.getresponse()
            body = response.read(MAX_REPLY_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise FlightRecorderError(f"could not ask {self._path}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise FlightRecorderError(f"could not ask {self._path}: status {response.status}")
        if len(body) > MAX_REPLY_BYTES:
            raise FlightRecorderError(f"could not read {self._path}: more than {MAX_REPLY_BYTES} bytes")
        return body


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
