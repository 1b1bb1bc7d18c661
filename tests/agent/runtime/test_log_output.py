"""The log never holds who writes to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rankwatch_agent.runtime.logs import MAX_LINES, LogOutput
from support.agent.process import until


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, __file__, 1, "%s", (text,), None)


def test_lines_are_written_in_order_and_flush_waits_for_them(pipe: tuple[int, int]) -> None:
    """Whole lines, whatever characters they hold."""
    output = LogOutput(pipe[1], flush_seconds=20.0)
    for text in ("one", "two \udcff", "three"):
        output.handle(record(text))
    output.flush()
    assert os.read(pipe[0], 1000) == b"one\ntwo \\udcff\nthree\n"


def test_a_reader_that_stops_reading_holds_nobody(pipe: tuple[int, int]) -> None:
    """What is too much is left out, and the log says so once it is read again."""
    output = LogOutput(pipe[1], flush_seconds=0.01)
    for _ in range(2 * MAX_LINES):
        output.handle(record("x" * 1000))
    output.flush()
    read = bytearray()

    def told() -> bool:
        read.extend(os.read(pipe[0], 1 << 16))
        return b"lines of the log were left out" in read

    until(told, "the gap is told of")
    os.set_blocking(pipe[0], False)

    def written() -> bool:
        with suppress(BlockingIOError):
            os.read(pipe[0], 1 << 16)
        with output._changed:
            return not output._waiting and not output._writing

    # Else it would write into a descriptor that another test has opened meanwhile.
    until(written, "the rest is read")


def test_a_reader_that_is_gone_costs_only_its_lines() -> None:
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
