"""The clock collector and its parser."""

from __future__ import annotations

import struct

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources import clock
from rankwatch_agent.sources.clock import ClockCollector, ClockState, parse_timex, read_timex
from support.agent.process import values

_SYNCHRONISED_IN_NANOSECONDS = 0x2001


def timex(offset: int, max_error: int, status: int) -> bytes:
    """What the kernel returns."""
    return struct.pack("@I4li", 0, offset, 7, max_error, 11, status).ljust(208, b"\0")


def test_parse_timex() -> None:
    """The status says in which unit the offset is."""
    found = parse_timex(timex(-1500, 250_000, _SYNCHRONISED_IN_NANOSECONDS))
    assert found == ClockState(pytest.approx(-1.5e-6), pytest.approx(0.25), synchronised=True)
    found = parse_timex(timex(-1500, 16_000_000, 0x0041))
    assert found == ClockState(pytest.approx(-1.5e-3), pytest.approx(16.0), synchronised=False)


def test_collect() -> None:
    """Every figure of the kernel is a series."""
    raw = timex(2_000_000, 1_000, _SYNCHRONISED_IN_NANOSECONDS)
    assert values([ClockCollector(schedule=Schedule(15, 5), read=lambda: raw).collect()]) == {
        ("rankwatch_host_clock_offset_seconds",): pytest.approx(0.002),
        ("rankwatch_host_clock_synchronised",): 1,
        ("rankwatch_host_clock_max_error_seconds",): pytest.approx(0.001),
    }


def test_this_machine() -> None:
    """The kernel of this machine answers, or says why not."""
    try:
        state = parse_timex(read_timex())
    except CollectError as error:
        assert "could not ask the kernel for its clock" in str(error)
    else:
        assert 0.0 <= state.max_error_seconds < 1e6
        assert abs(state.offset_seconds) < 10.0


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may refuse the call."""

    class Refusing:
        def __init__(self, *_: object, **__: object) -> None: ...

        def adjtimex(self, _: object) -> int:
            clock.ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(clock.ctypes, "CDLL", Refusing)
    with pytest.raises(CollectError, match="could not ask the kernel for its clock: Operation not permitted"):
        read_timex()
