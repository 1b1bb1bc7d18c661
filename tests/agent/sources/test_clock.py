"""The clock collector and its parser."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources import clock
from rankwatch_agent.sources.clock import ClockCollector, parse_timex, read_timex
from support.agent.process import values

_SYNCHRONISED_IN_NANOSECONDS = 0x2001


def timex(offset: int, max_error: int, status: int) -> bytes:
    """What the kernel returns."""
    return struct.pack("@I4li", 0, offset, 7, max_error, 11, status).ljust(208, b"\0")


@pytest.mark.parametrize(
    ("raw", "offset", "max_error", "synchronised"),
    [
        ((-1500, 250_000, _SYNCHRONISED_IN_NANOSECONDS), -1.5e-6, 0.25, 1),
        ((-1500, 16_000_000, 0x0041), -1.5e-3, 16.0, 0),
    ],
    ids=["nanoseconds", "microseconds"],
)
def test_collect(raw: tuple[int, int, int], offset: float, max_error: float, synchronised: int) -> None:
    """Every figure of the kernel is a series. The status says in which unit the offset is."""
    collector = ClockCollector(schedule=Schedule(15, 5), read=lambda: timex(*raw))
    assert values([collector.collect()]) == {
        ("rankwatch_host_clock_offset_seconds",): pytest.approx(offset),
        ("rankwatch_host_clock_synchronised",): synchronised,
        ("rankwatch_host_clock_max_error_seconds",): pytest.approx(max_error),
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

    def adjtimex(_: object) -> int:
        clock.ctypes.set_errno(1)
        return -1

    monkeypatch.setattr(clock.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(adjtimex=adjtimex))
    with pytest.raises(CollectError, match="could not ask the kernel for its clock: Operation not permitted"):
        read_timex()
