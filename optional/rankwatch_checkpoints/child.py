"""The process that verifies one checkpoint, at the lowest priority and with the rights of its owner."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from select import PIPE_BUF
from typing import Any

from rankwatch.untrusted.children import Limits, Owner, confined, memory_file
from rankwatch_agent.training.life.ends import memory_cgroup

MOST_AT_ONCE = 4
"""Processes that run at a time."""
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
        place = os.fsencode(path) + b"\0"
        if len(place) > PIPE_BUF:  # the longest path of the system, and what a pipe takes at once
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        limits = _LIMITS._replace(memory_bytes=memory_bytes())
        name = "rankwatch_checkpoints.__main__"
        self._output = memory_file()
        try:
            self._process = subprocess.Popen(
                command or confined(name, str(owner.uid), limits=limits, owner=owner),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Else the archive of all locales may count as memory of the process.
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError:
            self._output.close()
            raise
        assert self._process.stdin is not None
        self._input = self._process.stdin
        os.set_blocking(self._input.fileno(), False)
        self._write(place)

    @property
    def has_ended(self) -> bool:
        """False while it runs, and while it waits in the kernel after it was killed."""
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._monotonic() - self._began

    def set_rate(self, bytes_per_second: float) -> None:
        """Have it read as fast from now on. Set it again from time to time: a process that its user has
        stopped leaves no room for it."""
        if bytes_per_second != self._rate and self._write(f"{bytes_per_second!r}\n".encode()):
            self._rate = bytes_per_second

    def result(self) -> dict[str, Any] | None:
        """Return what it printed, once it is over: one of `result`, `gone`, `error`."""
        if not self.has_ended:
            late, stopped = self.seconds >= LONGEST_SECONDS, self._is_stopped()
            if not late and not stopped:
                return None
            self.kill()
            why = "its user has stopped it" if stopped else f"it did not end within {LONGEST_SECONDS:g} s"
            return {"error": f"a verification was given up: {why}"}
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

    def _is_stopped(self) -> bool:
        """Return True if somebody has stopped it by a signal, so that it would hold its place for hours."""
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[:1] == ["T"]

    def _write(self, line: bytes) -> bool:
        """Write at most PIPE_BUF bytes, whole or not at all; False where there is no room, or no process."""
        try:
            os.write(self._input.fileno(), line)
        except OSError:
            return False
        return True

    def _close(self) -> None:
        self._output.close()
        self._input.close()


def memory_bytes(procfs: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory of one process: of half of what the agent's cgroup may take, an equal part for each.

    So all of them leave the agent its room, which ends with them where the kernel ends a cgroup as a whole.
    """
    own = memory_cgroup(procfs, os.getpid()).lstrip("/")
    try:
        most = int((cgroups / own / "memory.max").read_text())
    except (OSError, ValueError):  # there is no such file, or `max`
        return _LIMITS.memory_bytes
    return min(most // 2 // MOST_AT_ONCE, _LIMITS.memory_bytes)
