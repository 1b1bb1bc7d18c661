"""Reading the hundreds of one-value files of RDMA ports: with few system calls, and broken ones seldom.

A port whose firmware refuses a query makes the driver write a line to the kernel's log at each read
(prometheus/node_exporter#3434), so a file that keeps failing is left alone for a while.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.kernel_files import EXHAUSTED, ExhaustedError, parse_count

STATES = MappingProxyType({0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"})
"""`enum ib_port_state` of the kernel."""
PHYSICAL_STATES = MappingProxyType(
    {
        1: "sleep",
        2: "polling",
        3: "disabled",
        4: "training",
        5: "link_up",
        6: "link_error_recovery",
        7: "phy_test",
    }
)
"""`enum ib_port_phys_state` of the kernel."""

_UNKNOWN = 2**64 - 1
"""All bits set: how a driver fills in what it does not know."""
_BYTES_PER_GIGABIT = 1_000_000_000 / 8


def parse_counter(text: bytes) -> int | None:
    """A counter; None for `N/A (no PMA)` and for all bits set."""
    if text.startswith(b"N/A"):
        return None
    value = parse_count(text.decode("ascii"))
    return value if value != _UNKNOWN else None


def parse_state(text: bytes) -> str | None:
    """`4: ACTIVE` as `active`; None for a state that the kernel's list does not hold."""
    return STATES.get(_number(text))


def parse_physical_state(text: bytes) -> str | None:
    """`5: LinkUp` as `link_up`; None for a state that the kernel's list does not hold."""
    return PHYSICAL_STATES.get(_number(text))


def parse_rate(text: bytes) -> float | None:
    """`400 Gb/sec (4X NDR)` in bytes per second; None where it is 0."""
    number, unit, *_ = (*text.split(), b"", b"")
    if unit != b"Gb/sec":
        raise ValueError(f"unexpected rate {text!r:.80}")
    gigabits = float(number)
    if not 0 <= gigabits < 1e9:
        raise ValueError(f"unexpected rate {text!r:.80}")
    return gigabits * _BYTES_PER_GIGABIT or None


def parse_word(text: bytes) -> str | None:
    """A name or version without the space around it; None where it is empty."""
    return text.decode("utf-8", "replace").strip() or None


def _number(text: bytes) -> int:
    return parse_count(text.partition(b":")[0].decode("ascii"))


Parsed = TypeVar("Parsed")

PATIENCE = 3
"""Failures in a row after which a file is left alone."""
RETRY_SECONDS = 600.0
"""Time for which it is left alone, unless it matters more."""
_MOST_BYTES = 4096  # sysfs never gives more than a page
_NO_ANSWER = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENODATA})
"""How drivers say that they do not know; everything else is told."""


class _Failure(NamedTuple):
    in_a_row: int
    ask_again: float


class SysfsFiles:
    """Reads files of one port; remembers which of them fail, as many as it has files."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures: dict[str, _Failure] = {}
        self._broken: dict[str, CollectError] = {}

    def value(
        self, path: str, parse: Callable[[bytes], Parsed | None], retry_seconds: float = RETRY_SECONDS
    ) -> Parsed | None:
        """What `parse` makes of the file; None where it is absent, cannot be read or says nothing.

        `parse` returns None for an answer that means "unknown" and raises ValueError for one that it
        does not understand. Raises ExhaustedError where no file can be opened at all: no file is to be
        left alone for that.
        """
        failure = self._failures.get(path) if self._failures else None
        if failure is not None and failure.in_a_row >= PATIENCE and self._monotonic() < failure.ask_again:
            return None
        try:
            value = parse(read_bytes(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise ExhaustedError(f"could not read {path}: {error.strerror}") from None
            self._tell(path, error)
            value = None
        if value is None:
            in_a_row = failure.in_a_row + 1 if failure is not None else 1
            self._failures[path] = _Failure(in_a_row, self._monotonic() + retry_seconds)
        elif failure is not None:
            del self._failures[path]
        return value

    def forget_failures(self) -> None:
        """Ask every file again, as after a change of the port's state."""
        self._failures.clear()

    def take_broken(self) -> list[CollectError]:
        """An error for each file that was read in vain since the last call; none where firmware says so."""
        broken, self._broken = list(self._broken.values()), {}
        return broken

    def _tell(self, path: str, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno in _NO_ANSWER:
            return
        reason = error.strerror if isinstance(error, OSError) else error
        self._broken[path] = CollectError(f"could not use {path}: {reason}")


def read_bytes(path: str) -> bytes:
    """The file's first 4096 bytes; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
