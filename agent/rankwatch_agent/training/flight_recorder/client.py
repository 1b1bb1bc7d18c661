"""Asks a rank's worker server. The reply is untrusted, bounded in size and in time.

Plain HTTP/1.0 over the socket: the standard library's client bounds each wait but not their sum, and
a server that sends a byte now and then would hold it for ever.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec

from rankwatch_agent.runtime.connect import seconds_left
from rankwatch_agent.runtime.errors import AgentError
from rankwatch_agent.training.flight_recorder.reply import Reply, decode, decode_names

MAX_REPLY_BYTES = 24 << 20
"""Of all recorders of a rank together. 2,000 entries are about 1 MB; a ring of 30,000 still fits. Eight
ranks are asked at a time, and the agent's memory is limited."""
RECORDERS = ("fr_trace_json", "dump_nccl_trace_json")
"""Handlers by name. Torch built with CUDA has two recorders, each with its own entries and record ids: that
of gloo and other backends, and that of NCCL (before the first came, NCCL's alone)."""
_MAX_NAMES_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 13
_CHUNK_BYTES = 1 << 18


class FlightRecorderError(AgentError):
    """The flight recorder could not be read; the message says why."""


class FlightRecorderClient:
    """The worker server of one rank.

    timeout_seconds: for one question and its whole answer.
    """

    def __init__(self, path: Path, *, timeout_seconds: float = 5.0) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._recorders: tuple[str, ...] = ()

    def pull(self) -> dict[str, Reply]:
        """Each flight recorder of the rank as it stands, by its handler; raises FlightRecorderError."""
        return {name: self.read(body) for name, body in self.pull_raw().items()}

    def read(self, body: bytes | bytearray) -> Reply:
        """Understand one reply; raises FlightRecorderError."""
        try:
            return decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise FlightRecorderError(f"could not read {self._path}: {error}") from error

    def pull_raw(self) -> dict[str, bytearray]:
        """The replies as they came, JSON where the rank is honest; raises FlightRecorderError."""
        try:
            if not self._recorders:
                self._recorders = self._find_recorders()
            left, replies = MAX_REPLY_BYTES, {}
            for name in self._recorders:
                replies[name] = self._ask("POST", f"/handler/{name}", left)
                left -= len(replies[name])
            return replies
        except FlightRecorderError:
            self._recorders = ()  # the next process at this path may have others
            raise

    def _find_recorders(self) -> tuple[str, ...]:
        try:
            names = decode_names(self._ask("GET", "/handler/", _MAX_NAMES_BYTES))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise FlightRecorderError(f"could not read {self._path}: {error}") from error
        found = tuple(name for name in RECORDERS if name in names)
        if not found:
            raise FlightRecorderError(f"could not read {self._path}: no handler {' or '.join(RECORDERS)}")
        return found

    def _ask(self, method: str, target: str, most_bytes: int) -> bytearray:
        """The body of the answer."""
        request = f"{method} {target} HTTP/1.0\r\nHost: rank\r\nContent-Length: 0\r\n\r\n"
        try:
            answer = self._exchange(request.encode(), _MAX_HEAD_BYTES + most_bytes)
        except OSError as error:
            raise FlightRecorderError(f"could not ask {self._path}: {error}") from error
        head = bytes(answer[:_MAX_HEAD_BYTES]).partition(b"\r\n\r\n")[0]
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise FlightRecorderError(f"could not ask {self._path}: the answer is no HTTP")
        if words[1] != b"200":
            raise FlightRecorderError(
                f"could not ask {self._path}: status {words[1].decode('ascii', 'replace')}"
            )
        del answer[: len(head) + 4]  # in place: it may be large
        return answer

    def _exchange(self, request: bytes, most_bytes: int) -> bytearray:
        deadline = time.monotonic() + self._timeout_seconds
        answer = bytearray()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self._timeout_seconds)
            connection.connect(str(self._path))
            connection.sendall(request)
            while True:
                connection.settimeout(seconds_left(deadline))
                chunk = connection.recv(_CHUNK_BYTES)
                if not chunk:
                    return answer
                answer += chunk
                if len(answer) > most_bytes:
                    raise FlightRecorderError(f"could not read {self._path}: more than {most_bytes} bytes")
