"""The log: its format, the thread that writes it, and the limit for repeated messages."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rankwatch_agent.runtime.logs import (
    BURST_SECONDS,
    MAX_BURST,
    MAX_LINES,
    MAX_MESSAGES,
    REPEAT_SECONDS,
    JsonFormatter,
    LogLimit,
    LogOutput,
    TextFormatter,
)
from support.agent.process import ManualClock, until


def record(text: str, *, level: int = logging.INFO, raised: str | None = None) -> logging.LogRecord:
    """A record of this message, with a ValueError of the text where given."""
    error = None
    if raised is not None:
        try:
            raise ValueError(raised)
        except ValueError:
            error = sys.exc_info()
    return logging.LogRecord("rankwatch_agent", level, __file__, 1, "run %s", (text,), error)


def test_json_line() -> None:
    """One object on one line: time in UTC, level, logger, message and exception."""
    warning = record("a\nb", level=logging.WARNING, raised="no")
    warning.created = 1.25
    line = JsonFormatter().format(warning)
    entry = json.loads(line)
    assert "\n" not in line
    assert entry.pop("exception").endswith("ValueError: no")
    assert entry == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "warning",
        "logger": "rankwatch_agent",
        "message": "run a\nb",
    }


def test_text_line() -> None:
    """The name of a run forges no line and steers no terminal; a traceback keeps its lines."""
    forged = record("r\n2026-01-01 WARNING forged\x1b]0;x\x07\u202e", raised="a\x1b[2J")
    line, *trace = TextFormatter("%(message)s").format(forged).splitlines()
    assert line == "run r?2026-01-01 WARNING forged?]0;x??"
    assert trace[-1] == "ValueError: a?[2J" and len(trace) > 2


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_lines_in_order(pipe: tuple[int, int]) -> None:
    """Flush waits for whole lines, whatever characters they hold."""
    output = LogOutput(pipe[1], flush_seconds=20.0)
    for text in ("one", "two \udcff", "three"):
        output.handle(record(text))
    output.flush()
    assert os.read(pipe[0], 1000) == b"run one\nrun two \\udcff\nrun three\n"


def test_reader_stops_reading(pipe: tuple[int, int]) -> None:
    """Nobody waits. Lines beyond the limit are dropped, and the log says so once it is read again."""
    output = LogOutput(pipe[1], flush_seconds=0.01)
    for _ in range(2 * MAX_LINES):
        output.handle(record("x" * 1000))
    output.flush()
    read = bytearray()

    def reported() -> bool:
        read.extend(os.read(pipe[0], 1 << 16))
        return b"lines of the log were dropped" in read

    until(reported, "the gap is reported")
    os.set_blocking(pipe[0], False)

    def written() -> bool:
        with suppress(BlockingIOError):
            os.read(pipe[0], 1 << 16)
        with output._changed:
            return not output._waiting and not output._writing

    # Else it would write into a descriptor that another test has opened meanwhile.
    until(written, "the rest is read")


def test_reader_is_gone() -> None:
    """The thread goes on and nothing is raised."""
    reading, writing = os.pipe()
    os.close(reading)
    output = LogOutput(writing, flush_seconds=20.0)
    output.handle(record("one"))
    output.flush()
    output.handle(record("two"))
    output.flush()
    assert not output._waiting
    os.close(writing)


def test_memory_of_the_log_limit() -> None:
    """After MAX_MESSAGES distinct messages, all are forgotten."""
    clock = ManualClock()
    limit = LogLimit(clock)
    for number in range(MAX_MESSAGES + 1):
        clock.now += BURST_SECONDS if number % MAX_BURST == 0 else 0
        assert limit.allows(str(number))
    assert limit.allows("0")


def test_burst_of_messages() -> None:
    """Ten thousand lines in a second help nobody. One that repeats is allowed again after REPEAT_SECONDS."""
    clock = ManualClock()
    limit = LogLimit(clock)
    assert sum(limit.allows(str(number)) for number in range(10_000)) == MAX_BURST
    clock.now += BURST_SECONDS
    assert [limit.allows(each) for each in ("9999", "9999", "0")] == [True, False, False]
    clock.now += REPEAT_SECONDS
    assert [limit.allows(each) for each in ("0", "0", "9999")] == [True, False, True]
