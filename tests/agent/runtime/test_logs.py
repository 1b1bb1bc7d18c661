"""The log of the command line."""

from __future__ import annotations

import json
import logging
import sys

from rankwatch_agent.runtime.logs import JsonFormatter


def test_a_json_line_holds_time_level_logger_message_and_exception() -> None:
    """One object on one line, with the time in UTC."""
    try:
        raise ValueError("no")
    except ValueError:
        raised = sys.exc_info()
    record = logging.LogRecord("rankwatch_agent", logging.WARNING, __file__, 1, "a %s\nb", ("%",), raised)
    record.created = 1.25
    line = JsonFormatter().format(record)
    entry = json.loads(line)
    assert "\n" not in line
    assert entry.pop("exception").endswith("ValueError: no")
    assert entry == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "warning",
        "logger": "rankwatch_agent",
        "message": "a %\nb",
    }
