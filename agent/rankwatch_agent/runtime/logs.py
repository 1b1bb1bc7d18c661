"""Logging of the command line: the only place that configures it."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from rankwatch_agent.runtime.log_output import LogOutput

STDERR = 2
"""Its file descriptor."""

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message; event and exception if any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self._time(record.created),
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

    @staticmethod
    def _time(seconds: float) -> str:
        milliseconds = int(seconds % 1 * 1000)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def configure_logging(*, level: str, log_format: str) -> None:
    """Send the log of the process to stderr; `level` as in logging, lower case; `log_format` text or json."""
    output = LogOutput(STDERR)
    output.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[output], force=True)
