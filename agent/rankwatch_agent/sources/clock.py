"""Collector `clock`: whether the node's clock is synchronised, and how far it may be off, from the kernel."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.shared import NodeShared

_TIMEX = struct.Struct("@I4li")
"""The first members of `struct timex` (linux/timex.h): modes, offset, freq, maxerror, esterror, status."""
_TIMEX_BYTES = 208
_UNSYNCHRONISED, _NANOSECONDS = 0x0040, 0x2000
"""STA_UNSYNC and STA_NANO of its status."""


class ClockState(NamedTuple):
    """The kernel's clock as its time daemon keeps it."""

    offset_seconds: float
    """Offset that is still to be corrected; chronyd corrects otherwise and leaves it at about 0."""
    max_error_seconds: float
    """Grows by 500 microseconds a second since the daemon set it last, to 16 s at most."""
    synchronised: bool


@source(interval_seconds=15.0, deadline_seconds=5.0)
def clock(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield ClockCollector(schedule=schedule)


class ClockCollector:
    """Asks the kernel; this sets nothing and needs no privilege. read: returns its `struct timex`."""

    name = "clock"

    def __init__(self, *, schedule: Schedule, read: Callable[[], bytes] | None = None) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._read = read or read_timex

    def collect(self) -> Collection:
        """Read the clock's state once. Raises CollectError."""
        state = parse_timex(self._read())
        series = [
            sample("rankwatch_host_clock_offset_seconds", (), state.offset_seconds),
            sample("rankwatch_host_clock_synchronised", (), float(state.synchronised)),
            sample("rankwatch_host_clock_max_error_seconds", (), state.max_error_seconds),
        ]
        return Collection(series=series)


def read_timex() -> bytes:
    """Return `struct timex` of adjtimex(2) without a mode. Raises CollectError where that is refused."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
        raise CollectError(f"could not ask the kernel for its clock: {os.strerror(ctypes.get_errno())}")
    return buffer.raw


def parse_timex(raw: bytes) -> ClockState:
    """Return the state in a `struct timex` of this machine's byte order."""
    _, offset, _, max_error, _, status = _TIMEX.unpack_from(raw)
    return ClockState(
        offset_seconds=offset * (1e-9 if status & _NANOSECONDS else 1e-6),
        max_error_seconds=max_error * 1e-6,
        synchronised=not status & _UNSYNCHRONISED,
    )
