"""Reads and parses the hundreds of one-value files of RDMA ports, with few system calls.

When firmware refuses a query, some drivers write a line to the kernel's log at every read
(prometheus/node_exporter#3434). A file that keeps failing is therefore skipped for a while.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.kernel_files import OUT_OF_DESCRIPTORS, OutOfDescriptorsError, parse_count

Parsed = TypeVar("Parsed")

MAX_FAILURES = 3
"""Failures in a row after which a file is skipped."""
RETRY_SECONDS = 600.0
"""Time for which a failing file is skipped by default."""
_MAX_BYTES = 4096  # sysfs never returns more than a page
_UNKNOWN_TO_DRIVER = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENODATA})
"""Errors by which a driver says that it does not know the value. All others are reported."""

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

_UNKNOWN_COUNT = 2**64 - 1
"""All bits set: a counter that the driver does not know."""
_BYTES_PER_GIGABIT = 1_000_000_000 / 8


class _Failure(NamedTuple):
    in_a_row: int
    retry_at: float
    """On the monotonic clock."""


class SysfsFiles:
    """Reads the files of one port or device, and remembers which of them fail."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures: dict[str, _Failure] = {}
        self._errors: dict[str, CollectError] = {}

    def value(
        self, path: str, parse: Callable[[bytes], Parsed | None], retry_seconds: float = RETRY_SECONDS
    ) -> Parsed | None:
        """Returns the parsed file, or None where it is absent, unreadable, skipped or without a value.

        `parse` returns None for an answer that means "unknown" and raises ValueError for one that it does not
        understand. Either counts as a failure of the file. OutOfDescriptorsError, which it raises, does not.
        """
        failure = self._failures.get(path) if self._failures else None
        if failure is not None and failure.in_a_row >= MAX_FAILURES and self._monotonic() < failure.retry_at:
            return None
        try:
            value = parse(read_bytes(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
                raise OutOfDescriptorsError(f"could not read {path}: {error.strerror}") from None
            self._report(path, error)
            value = None
        if value is None:
            in_a_row = failure.in_a_row + 1 if failure is not None else 1
            self._failures[path] = _Failure(in_a_row, self._monotonic() + retry_seconds)
        elif failure is not None:
            del self._failures[path]
        return value

    def forget_failures(self) -> None:
        """Reads every file again from now on, as after a change of the port's state."""
        self._failures.clear()

    def take_errors(self) -> list[CollectError]:
        """Returns one error per file that broke since the last call."""
        errors, self._errors = list(self._errors.values()), {}
        return errors

    def _report(self, path: str, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno in _UNKNOWN_TO_DRIVER:
            return
        reason = error.strerror if isinstance(error, OSError) else error
        self._errors[path] = CollectError(f"could not use {path}: {reason}")


def read_bytes(path: str) -> bytes:
    """Returns the first 4096 bytes of the file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _MAX_BYTES)
    finally:
        os.close(descriptor)


def parse_counter(text: bytes) -> int | None:
    """Parses a counter; None for `N/A (no PMA)` and for all bits set."""
    if text.startswith(b"N/A"):
        return None
    value = parse_count(text.decode("ascii"))
    return value if value != _UNKNOWN_COUNT else None


def parse_state(text: bytes) -> str | None:
    """Parses `4: ACTIVE` as `active`; None for a state that is not in the kernel's list."""
    return STATES.get(_number(text))


def parse_physical_state(text: bytes) -> str | None:
    """Parses `5: LinkUp` as `link_up`; None for a state that is not in the kernel's list."""
    return PHYSICAL_STATES.get(_number(text))


def parse_rate(text: bytes) -> float | None:
    """Parses `400 Gb/sec (4X NDR)` as bytes per second; None where it is 0."""
    number, unit, *_ = (*text.split(), b"", b"")
    if unit != b"Gb/sec":
        raise ValueError(f"unexpected rate {text!r:.80}")
    gigabits = float(number)
    if not 0 <= gigabits < 1e9:
        raise ValueError(f"unexpected rate {text!r:.80}")
    return gigabits * _BYTES_PER_GIGABIT or None


def parse_word(text: bytes) -> str | None:
    """Parses a name or version, without the space around it; None where it is empty."""
    return text.decode("utf-8", "replace").strip() or None


def _number(text: bytes) -> int:
    return parse_count(text.partition(b":")[0].decode("ascii"))
