"""The log of a process: its format, a thread that writes it, and a limit for messages that repeat."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rankwatch.untrusted.text import printable

MAX_LINES = 1000
"""Lines that wait to be written. More are dropped and counted."""
FLUSH_SECONDS = 0.5
"""Longest wait for unwritten lines at the end of the process."""
REPEAT_SECONDS = 600.0
"""A message that persists is logged again after this time, so that a rotated log still holds it."""
MAX_MESSAGES = 1000
"""Distinct messages remembered. When there are more, all are forgotten and may be logged once more."""
MAX_BURST = 100
"""Messages allowed within BURST_SECONDS: hundreds of files that fail at once all log the same fault."""
BURST_SECONDS = 60.0

_STDERR = 2
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(*, level: str, log_format: str) -> None:
    """Send the log of the process to stderr. Only the command line calls this.

    level: as in logging, in lower case. log_format: text or json.
    """
    output = LogOutput(_STDERR)
    output.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[output], force=True)


class TextFormatter(logging.Formatter):
    """One line a record, whatever names and paths of users hold; a traceback has lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class names it so
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  as above
        return printable(super().formatException(ei), keep="\n")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message; event and exception if any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if event is not None:
            entry["event"] = event
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def rfc3339(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    milliseconds = int(seconds % 1 * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


class LogOutput(logging.Handler):
    """Writes to a file descriptor in a thread of its own, so that nobody waits for the reader of the log.

    A container runtime that stops reading, for instance on a full disk, would otherwise block every
    collector, every scrape and the end of the process. Writes bypass Python's buffers: one that hangs
    holds no lock.
    """

    def __init__(self, descriptor: int, *, flush_seconds: float = FLUSH_SECONDS) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._flush_seconds = flush_seconds
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self._writing = False
        threading.Thread(target=self._write_forever, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        with self._changed:
            if len(self._waiting) >= MAX_LINES:
                self._dropped += 1
            else:
                self._waiting.append(line)
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, at most `flush_seconds`."""
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
        dropped, self._dropped = self._dropped, 0
        note = f"{dropped} lines of the log were dropped: nobody read it\n".encode() if dropped else b""
        return self._waiting.popleft() + note

    def _write(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except OSError:
                return  # the reader is gone, and there is no other place to report it


class LogLimit:
    """Allows a message when it is new, then once in REPEAT_SECONDS. Not safe for several threads.

    Allows at most MAX_BURST messages within BURST_SECONDS; a message that persists is logged later.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._logged: dict[str, float] = {}
        self._burst_began = float("-inf")
        self._burst = 0

    def allows(self, message: str) -> bool:
        """Return True if the message should be logged now; it then counts as logged."""
        now = self._monotonic()
        last = self._logged.get(message)
        if last is not None and now - last < REPEAT_SECONDS:
            return False
        if now - self._burst_began >= BURST_SECONDS:
            self._burst_began, self._burst = now, 0
        if self._burst >= MAX_BURST:
            return False
        self._burst += 1
        if len(self._logged) >= MAX_MESSAGES:
            self._logged.clear()
        self._logged[message] = now
        return True
