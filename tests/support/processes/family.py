"""Processes that share a variable in their environment, including those whose parent has ended."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

from support.agent.process import clean_environment

_VARIABLE = "TEST_PROCESS_FAMILY"


class ProcessFamily:
    """Every process started with `environ`, and all their descendants."""

    def __init__(self) -> None:
        self._tag = uuid.uuid4().hex
        self.environ = {**clean_environment(), _VARIABLE: self._tag}
        """Environment of the first members, without settings of rankwatch."""

    def members(self) -> dict[int, list[str]]:
        """Process id -> command line of all living members. A zombie has no environment and does not
        count."""
        mark = f"{_VARIABLE}={self._tag}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                    found[int(entry.name)] = command.split("\0")[:-1]
            except OSError:
                continue  # it has ended, or belongs to another user
        return found

    def kill(self) -> None:
        """Kill every member until none is left.

        All members are stopped first. Otherwise a rank whose peer dies first would end with its own error.
        """
        while living := self.members():
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in living:
                    _send(pid, number)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
