"""One NVML worker: a child process that is asked with a deadline and killed when it does not answer.

A driver call can block for ever and no signal ends it: only a process can be given up.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.gpu.protocol import MAX_MESSAGE_BYTES

_LENGTH = struct.Struct(">I")
_SLICE_SECONDS = 0.2
"""How often a waiting question looks whether it is still wanted."""
_CHUNK_BYTES = 1 << 18


class WorkerTimeoutError(CollectError):
    """The worker did not answer in time: a driver call hangs."""


class WorkerEndedError(CollectError):
    """The worker ended, or said what cannot be understood."""


class WorkerProcess:
    """A running worker. `ask` and the rest are called from one thread at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it; raises CollectError where no process can be had."""
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, close_fds=True
            )
        except OSError as error:
            raise CollectError(f"could not start the NVML worker: {error.strerror or error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        os.set_blocking(self._stdin.fileno(), False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, request: bytes, deadline_seconds: float, wanted: Callable[[], bool]) -> bytes:
        """The answer to one request.

        Raises WorkerTimeoutError past the deadline or when no longer `wanted`, WorkerEndedError where the
        worker has ended; the worker is of no use after either.
        """
        end = time.monotonic() + deadline_seconds
        try:
            os.write(self._stdin.fileno(), _LENGTH.pack(len(request)) + request)
        except OSError:
            raise WorkerEndedError(f"the NVML worker has ended {self._status()}") from None
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, end, wanted))
        if length > MAX_MESSAGE_BYTES:
            raise WorkerEndedError(f"the NVML worker announced an answer of {length} bytes")
        return self._read(length, end, wanted)

    def _read(self, size: int, end: float, wanted: Callable[[], bool]) -> bytes:
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        parts = bytearray()
        while len(parts) < size:
            left = end - time.monotonic()
            if left <= 0 or not wanted():
                raise WorkerTimeoutError("a driver call does not return")
            if not poll.poll(min(left, _SLICE_SECONDS) * 1000):
                continue
            read = os.read(self._stdout.fileno(), min(size - len(parts), _CHUNK_BYTES))
            if not read:
                raise WorkerEndedError(f"the NVML worker ended {self._status()}")
            parts += read
        return bytes(parts)

    def end(self, grace_seconds: float) -> None:
        """Ask it to shut the driver down and leave; it closes the driver on end of input. Never raises."""
        self._stdin.close()
        self._wait(grace_seconds)

    def kill(self, grace_seconds: float) -> bool:
        """Kill it; True where it is gone after the grace. In an uninterruptible call (state D) it stays."""
        self._process.kill()
        return self._wait(grace_seconds)

    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Close the pipes."""
        self._stdin.close()
        self._stdout.close()

    def _wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _status(self) -> str:
        self._wait(1.0)
        code = self._process.returncode
        if code is None:
            return "its output but not itself"
        return f"by signal {-code}" if code < 0 else f"with status {code}"


def worker_command(library: Path | None) -> list[str]:
    """How the worker is started."""
    command = [sys.executable, "-P", "-m", "rankwatch_agent.sources.gpu.worker"]
    return command if library is None else [*command, "--library", str(library)]
