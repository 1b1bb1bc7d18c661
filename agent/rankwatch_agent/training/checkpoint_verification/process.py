"""The process that reads one checkpoint, at the lowest priority and with the rights of its owner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankwatch.untrusted.children import Limits, Owner, confined

_MOST_OUTPUT_BYTES = 8 << 20
LONGEST_SECONDS = 12 * 3600.0
"""A file server that never answers holds a process; past this it is killed."""
_REAP_SECONDS = 0.2
"""One that waits in the kernel ends later."""
_LIMITS = Limits(
    seconds=LONGEST_SECONDS,
    cpu_seconds=3 * 3600,  # for 10 TB; a checksum takes a second of each GB
    memory_bytes=4 << 30,
    output_bytes=_MOST_OUTPUT_BYTES,
)


class VerifyingProcess:
    """A verification that runs. `result` is None while it does."""

    def __init__(
        self,
        path: Path,
        *,
        owner: Owner,
        command: Sequence[str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start it. It reads nothing before it has a rate. Raises OSError."""
        self._monotonic = monotonic
        self._began = monotonic()
        self._rate = 0.0
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        arguments = (str(owner.uid), str(path))
        name = "rankwatch.checkpoint_files.__main__"
        try:
            self._process = subprocess.Popen(
                command or confined(name, *arguments, limits=_LIMITS, owner=owner),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            self._output.close()
            raise

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._monotonic() - self._began

    def set_rate(self, bytes_per_second: float) -> None:
        """Have it read as fast from now on."""
        if bytes_per_second != self._rate:
            self._rate = bytes_per_second
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended
                self._process.stdin.write(f"{bytes_per_second!r}\n".encode())
                self._process.stdin.flush()

    def result(self) -> dict[str, Any] | None:
        """What it printed, once it is over: one of `result`, `gone`, `error`."""
        if self._process.poll() is None:
            if self.seconds < LONGEST_SECONDS:
                return None
            self.kill()
            return {"error": f"it did not end within {LONGEST_SECONDS:g} s"}
        try:
            self._output.seek(0)
            found = json.loads(self._output.read(_MOST_OUTPUT_BYTES))
            if isinstance(found, dict):
                return found
        except (ValueError, RecursionError):
            pass
        finally:
            self._close()
        return {"error": f"it ended with status {self._process.returncode}"}

    def kill(self) -> None:
        """End it now. One that this process has no right to end sees that its input has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP_SECONDS)

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._output.close()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
