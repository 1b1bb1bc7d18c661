"""Ends the demo's processes and removes its files, however the demo itself ended.

The cleanup is a process of its own that waits for the end of its standard input. The demo holds the
other end of that pipe, so the end comes when the demo closes it, crashes, or is killed. A variable in the
environment marks the processes of a demo. They inherit it even after they have left their parent, as the
ranks of torchrun do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rankwatch.processes import python

MARK = "RANKWATCH_DEMO"
"""Environment variable of every process of a demo; its value is the demo's directory."""
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""


class Cleanup:
    """Cleans up after the demo in `directory`, at `close` or when this process dies."""

    def __init__(self, directory: Path) -> None:
        command = python("-m", __name__, str(directory))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Clean up now and wait until that is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def clean(directory: Path, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End every process that carries the mark of this demo, then remove its directory."""
    deadline = time.monotonic() + grace_seconds
    terminated: set[int] = set()
    while found := list(_marked(directory)):
        overdue = time.monotonic() > deadline
        for pid in found:
            if overdue or pid not in terminated:
                terminated.add(pid)
                _signal(pid, signal.SIGKILL if overdue else signal.SIGTERM)
        time.sleep(0.05)
    shutil.rmtree(directory, ignore_errors=True)


def _marked(directory: Path) -> Iterator[int]:
    mark = f"{MARK}={directory}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue  # gone meanwhile, or another user's
        if mark in variables.split(b"\0"):
            yield int(entry.name)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]))
