"""Where the log goes: written by a thread of its own, so that nobody waits for whoever reads it.

A container runtime that stops reading, for instance on a full disk, would else hold every collector, every
scrape and the end of the process at their next line.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

MAX_LINES = 1000
"""Lines that wait to be written; further ones are left out and counted."""
FLUSH_SECONDS = 0.5
"""Longest wait at the end of the process for lines that are not written yet."""


class LogOutput(logging.Handler):
    """Writes to a file descriptor past the buffers of Python: a write that hangs holds no lock."""

    def __init__(self, descriptor: int, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._flush_seconds = flush_seconds
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._writing = False
        threading.Thread(target=self._write_forever, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line."""
        line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        with self._changed:
            if len(self._waiting) >= MAX_LINES:
                self._left_out += 1
            else:
                self._waiting.append(line)
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, but not longer than `flush_seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._writing, self._flush_seconds)

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                line = self._next()
                self._writing = True
            self._write(line)

    def _next(self) -> bytes:
        left_out, self._left_out = self._left_out, 0
        said = f"{left_out} lines of the log were left out: nobody read it\n".encode() if left_out else b""
        return self._waiting.popleft() + said

    def _write(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except OSError:
                return  # nobody reads the log any more; there is no other place to say so
