"""Reading a driver's statistics by the ethtool ioctl; needs no privilege.

The kernel writes as many statistics as the driver has at that moment, not as many as were asked for, and a
change of the number of queues may come between two calls. So each answer goes into a mapping with room for
MOST_STATISTICS, of which only the pages that are written to take memory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import socket
from collections.abc import Callable
from typing import TypeVar

from rankwatch_agent.runtime.collector import CollectError, NotApplicable
from rankwatch_agent.sources.ethtool import structs

Parsed = TypeVar("Parsed")

MOST_STATISTICS = 65_536
"""Room for an answer; the largest drivers have about 10 000 statistics with 128 queues."""
_ACCEPTED = MOST_STATISTICS // 2
"""More are not asked for, to keep room for a driver that is just getting more queues."""
_NONE = frozenset({errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.ENOTTY})
"""No statistics, or no such interface in this network namespace."""


class DriverStatistics:
    """Names and values of one interface's statistics, over a socket of the caller's network namespace."""

    def __init__(self, asked_over: socket.socket, interface: str) -> None:
        self._socket = asked_over
        self._interface = interface

    def names(self) -> tuple[str, ...]:
        """In the order of `values`; raises NotApplicable where the driver has none, CollectError."""
        count = self._ask(structs.count_request(), mmap.PAGESIZE, structs.parse_count)
        if count == 0:
            raise NotApplicable(f"{self._interface} has no statistics of its driver")
        if count > _ACCEPTED:
            raise CollectError(f"{self._interface} has {count} statistics, more than {_ACCEPTED}")
        room = structs.names_size(MOST_STATISTICS)
        return self._ask(structs.names_request(count), room, structs.parse_names)

    def values(self, count: int) -> tuple[int, ...]:
        """The values now, `count` of them unless that has changed; raises NotApplicable, CollectError."""
        room = structs.values_size(MOST_STATISTICS)
        return self._ask(structs.values_request(count), room, structs.parse_values)

    def _ask(self, request: bytes, room: int, parse: Callable[[structs.Answer], Parsed]) -> Parsed:
        with mmap.mmap(-1, room) as answer:
            answer[: len(request)] = request
            self._call(answer)
            try:
                return parse(answer)
            except ValueError as error:
                raise CollectError(f"statistics of {self._interface}: {error}") from None

    def _call(self, answer: mmap.mmap) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(answer))
        try:
            request = structs.interface_request(self._interface, address)
            fcntl.ioctl(self._socket, structs.SIOCETHTOOL, request)
        except ValueError as error:
            raise NotApplicable(str(error)) from None
        except OSError as error:
            what = f"statistics of {self._interface}: {error.strerror or error}"
            if error.errno in _NONE:
                raise NotApplicable(what) from None
            raise CollectError(f"could not read {what}") from None
