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
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import parse_kernel_file, read_kernel_file

Answer = bytes | mmap.mmap
"""What the kernel wrote, and unused room behind it."""

SIOCETHTOOL = 0x8946
GSTRINGS = 0x1B
GSTATS = 0x1D
GSSET_INFO = 0x37
STATISTICS_SET = 1
"""ETH_SS_STATS."""
NAME_BYTES = 32
"""ETH_GSTRING_LEN."""
MAX_INTERFACE_BYTES = 15
"""IFNAMSIZ less the closing NUL."""

_IFREQ = struct.Struct("@16sP16x")
_SET_INFO = struct.Struct("=IIQI")
_STRINGS = struct.Struct("=III")
_STATISTICS = struct.Struct("=II")


def interface_request(interface: str, address: int) -> bytes:
    """`struct ifreq` that names an interface and points to a command; ValueError: the name is too long."""
    name = interface.encode("utf-8", "surrogateescape")
    if len(name) > MAX_INTERFACE_BYTES:
        raise ValueError(f"{interface!r:.80} is no name of an interface")
    return _IFREQ.pack(name, address)


def count_request() -> bytes:
    """`struct ethtool_sset_info` that asks for the number of statistics."""
    return _SET_INFO.pack(GSSET_INFO, 0, 1 << STATISTICS_SET, 0)


def parse_count(answer: Answer) -> int:
    """The number of statistics; 0 where the driver clears the bit that asked for it."""
    _, _, mask, count = _SET_INFO.unpack_from(answer)
    return int(count) if mask & 1 << STATISTICS_SET else 0


def names_request(count: int) -> bytes:
    """Head of `struct ethtool_gstrings`; the names follow it in the answer."""
    return _STRINGS.pack(GSTRINGS, STATISTICS_SET, count)


def names_size(count: int) -> int:
    """Bytes of an answer with that many names."""
    return _STRINGS.size + count * NAME_BYTES


def parse_names(answer: Answer) -> tuple[str, ...]:
    """The names, in the order of the values; ValueError where the answer is shorter than it says."""
    count = _STRINGS.unpack_from(answer)[2]
    if len(answer) < names_size(count):
        raise ValueError(f"{count} names do not fit into {len(answer)} bytes")
    starts = range(_STRINGS.size, names_size(count), NAME_BYTES)
    return tuple(_text(answer[start : start + NAME_BYTES]) for start in starts)


def values_request(count: int) -> bytes:
    """Head of `struct ethtool_stats`; the values follow it in the answer."""
    return _STATISTICS.pack(GSTATS, count)


def values_size(count: int) -> int:
    """Bytes of an answer with that many values."""
    return _STATISTICS.size + count * 8


def parse_values(answer: Answer) -> tuple[int, ...]:
    """The values; ValueError where the answer is shorter than it says."""
    count = _STATISTICS.unpack_from(answer)[1]
    if len(answer) < values_size(count):
        raise ValueError(f"{count} values do not fit into {len(answer)} bytes")
    return struct.unpack_from(f"={count}Q", answer, _STATISTICS.size)


def _text(padded: bytes) -> str:
    return padded.partition(b"\0")[0].decode("ascii", "replace").strip()


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
        count = self._ask(count_request(), mmap.PAGESIZE, parse_count)
        if count == 0:
            raise NotApplicable(f"{self._interface} has no statistics of its driver")
        if count > _ACCEPTED:
            raise CollectError(f"{self._interface} has {count} statistics, more than {_ACCEPTED}")
        room = names_size(MOST_STATISTICS)
        return self._ask(names_request(count), room, parse_names)

    def values(self, count: int) -> tuple[int, ...]:
        """The values now, `count` of them unless that has changed; raises NotApplicable, CollectError."""
        room = values_size(MOST_STATISTICS)
        return self._ask(values_request(count), room, parse_values)

    def _ask(self, request: bytes, room: int, parse: Callable[[Answer], Parsed]) -> Parsed:
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
            request = interface_request(self._interface, address)
            fcntl.ioctl(self._socket, SIOCETHTOOL, request)
        except ValueError as error:
            raise NotApplicable(str(error)) from None
        except OSError as error:
            what = f"statistics of {self._interface}: {error.strerror or error}"
            if error.errno in _NONE:
                raise NotApplicable(what) from None
            raise CollectError(f"could not read {what}") from None


_SIOCGIFINDEX = 0x8933
_SIOCGIFHWADDR = 0x8927
_IFREQ_OF_NAME = struct.Struct("@16s24x")
_ADDRESS_AT = 18
_MOST_ADDRESS_BYTES = 14
"""`struct sockaddr` takes no more; an address of InfiniBand has 20."""


def check_same_interface(asked_over: socket.socket, directory: Path) -> None:
    """Compare number and hardware address; raises NotApplicable where they differ, CollectError."""
    index = parse_kernel_file(directory / "ifindex", int)
    address = parse_kernel_file(directory / "address", _parse_address)
    elsewhere = NotApplicable(f"{directory.name} lies in another network namespace")
    try:
        request = _IFREQ_OF_NAME.pack(directory.name.encode("utf-8", "surrogateescape"))
        found = fcntl.ioctl(asked_over, _SIOCGIFINDEX, request)
        hardware = fcntl.ioctl(asked_over, _SIOCGIFHWADDR, request)
    except OSError:
        raise elsewhere from None
    known = hardware[_ADDRESS_AT : _ADDRESS_AT + len(address)]
    if struct.unpack_from("@i", found, 16)[0] != index or known != address:
        raise elsewhere


def interface_version(directory: Path) -> tuple[str, str]:
    """What changes when the driver may have other statistics: number, and count of carrier changes."""
    return read_kernel_file(directory / "ifindex"), read_kernel_file(directory / "carrier_changes")


def _parse_address(text: str) -> bytes:
    return bytes.fromhex(text.strip().replace(":", ""))[:_MOST_ADDRESS_BYTES]
