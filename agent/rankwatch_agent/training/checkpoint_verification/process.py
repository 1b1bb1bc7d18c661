"""The process that reads one checkpoint, at the lowest priority."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MOST_OUTPUT_BYTES = 8 << 20
LONGEST_SECONDS = 12 * 3600.0
"""A file server that never answers holds a process; past this it is killed."""


class VerifyingProcess:
    """A verification that runs. `result` is None while it does."""

    def __init__(
        self,
        path: Path,
        *,
        owner: int,
        bytes_per_second: float,
        command: Sequence[str] = (sys.executable, "-m", "rankwatch.checkpoint_files"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start it. Raises OSError."""
        self._monotonic = monotonic
        self._began = monotonic()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        arguments = ["--bytes-per-second", str(bytes_per_second), "--owner", str(owner), "--", str(path)]
        try:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._output.close()
            raise

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._monotonic() - self._began

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
        except ValueError:
            pass
        finally:
            self._output.close()
        return {"error": f"it ended with status {self._process.returncode}"}

    def kill(self) -> None:
        """End it now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._output.close()
