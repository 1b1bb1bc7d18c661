"""Reads the statistics of a network driver through the ethtool ioctl, which needs no privilege.

The structs are those of the kernel's include/uapi/linux/ethtool.h. The kernel writes as many statistics as
the driver has at that moment, not as many as were requested, and the number of queues may change between two
calls. Each answer therefore goes into a mapping with room for MAX_STATISTICS; only pages that are written
take memory.
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

Parsed = TypeVar("Parsed")

Answer = bytes | mmap.mmap
"""What the kernel wrote, with unused room behind it."""

MAX_STATISTICS = 65_536
"""Room for an answer. The largest drivers have about 10,000 statistics with 128 queues."""
_MAX_REQUESTED = MAX_STATISTICS // 2
"""Most statistics requested. The rest is room for a driver that gets more queues meanwhile."""
_NOT_HERE = frozenset({errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.ENOTTY})
"""The driver has no statistics, or this network namespace no such interface."""

SIOCETHTOOL = 0x8946
_SIOCGIFINDEX = 0x8933
_SIOCGIFHWADDR = 0x8927
_GSTRINGS = 0x1B
_GSTATS = 0x1D
_GSSET_INFO = 0x37
_STATISTICS_SET = 1
"""ETH_SS_STATS."""
_NAME_BYTES = 32
"""ETH_GSTRING_LEN."""
_MAX_INTERFACE_BYTES = 15
"""IFNAMSIZ less the closing NUL."""
_ADDRESS_OFFSET = 18
_MAX_ADDRESS_BYTES = 14
"""Room in `struct sockaddr`. An InfiniBand address has 20 bytes and is cut."""

_IFREQ = struct.Struct("@16sP16x")
_IFREQ_WITHOUT_POINTER = struct.Struct("@16s24x")
_SET_INFO = struct.Struct("=IIQI")
_STRINGS = struct.Struct("=III")
_STATISTICS = struct.Struct("=II")


class DriverStatistics:
    """Names and values of one interface's statistics, in the network namespace of the socket."""

    def __init__(self, connection: socket.socket, interface: str) -> None:
        self._socket = connection
        self._interface = interface

    def names(self) -> tuple[str, ...]:
        """Returns the names in the order of `values`.

        Raises NotApplicable where there are none, CollectError.
        """
        count = self._request(count_request(), mmap.PAGESIZE, parse_statistics_count)
        if count == 0:
            raise NotApplicable(f"the driver of {self._interface} has no statistics")
        if count > _MAX_REQUESTED:
            raise CollectError(f"{self._interface} has {count} statistics, more than {_MAX_REQUESTED}")
        return self._request(names_request(count), names_size(MAX_STATISTICS), parse_names)

    def values(self, count: int) -> tuple[int, ...]:
        """Returns the present values, `count` of them unless that has changed.

        Raises NotApplicable, CollectError.
        """
        return self._request(values_request(count), values_size(MAX_STATISTICS), parse_values)

    def _request(self, request: bytes, room: int, parse: Callable[[Answer], Parsed]) -> Parsed:
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
            fcntl.ioctl(self._socket, SIOCETHTOOL, interface_request(self._interface, address))
        except ValueError as error:
            raise NotApplicable(str(error)) from None
        except OSError as error:
            what = f"statistics of {self._interface}: {error.strerror or error}"
            if error.errno in _NOT_HERE:
                raise NotApplicable(what) from None
            raise CollectError(f"could not read {what}") from None


def check_same_interface(connection: socket.socket, directory: Path) -> None:
    """Checks that the socket's interface is the one at `directory` in sysfs.

    The agent may see the host's sysfs from a network namespace of its own, where `eth0` is another interface.
    Interface numbers repeat between namespaces; hardware addresses do not. Raises NotApplicable where either
    differs, CollectError.
    """
    index = parse_kernel_file(directory / "ifindex", int)
    address = parse_kernel_file(directory / "address", _parse_address)
    other_namespace = NotApplicable(f"{directory.name} lies in another network namespace")
    try:
        request = _IFREQ_WITHOUT_POINTER.pack(directory.name.encode("utf-8", "surrogateescape"))
        with_index = fcntl.ioctl(connection, _SIOCGIFINDEX, request)
        with_address = fcntl.ioctl(connection, _SIOCGIFHWADDR, request)
    except OSError:
        raise other_namespace from None
    found = with_address[_ADDRESS_OFFSET : _ADDRESS_OFFSET + len(address)]
    if struct.unpack_from("@i", with_index, 16)[0] != index or found != address:
        raise other_namespace


def interface_version(directory: Path) -> tuple[str, str]:
    """Returns interface number and carrier changes. While they stay the same, so do the statistics' names."""
    return read_kernel_file(directory / "ifindex"), read_kernel_file(directory / "carrier_changes")


def _parse_address(text: str) -> bytes:
    return bytes.fromhex(text.strip().replace(":", ""))[:_MAX_ADDRESS_BYTES]


def interface_request(interface: str, address: int) -> bytes:
    """Builds the `struct ifreq` that names an interface and points to a command.

    Raises ValueError where the name is too long.
    """
    name = interface.encode("utf-8", "surrogateescape")
    if len(name) > _MAX_INTERFACE_BYTES:
        raise ValueError(f"{interface!r:.80} is not the name of an interface")
    return _IFREQ.pack(name, address)


def count_request() -> bytes:
    """Builds the `struct ethtool_sset_info` that requests the number of statistics."""
    return _SET_INFO.pack(_GSSET_INFO, 0, 1 << _STATISTICS_SET, 0)


def parse_statistics_count(answer: Answer) -> int:
    """Returns the number of statistics; 0 where the driver has cleared the bit of the request."""
    _, _, mask, count = _SET_INFO.unpack_from(answer)
    return int(count) if mask & 1 << _STATISTICS_SET else 0


def names_request(count: int) -> bytes:
    """Builds the head of `struct ethtool_gstrings`. The names follow it in the answer."""
    return _STRINGS.pack(_GSTRINGS, _STATISTICS_SET, count)


def names_size(count: int) -> int:
    """Returns the bytes of an answer with `count` names."""
    return _STRINGS.size + count * _NAME_BYTES


def parse_names(answer: Answer) -> tuple[str, ...]:
    """Returns the names in the order of the values. Raises ValueError where the answer is cut off."""
    count = _STRINGS.unpack_from(answer)[2]
    if len(answer) < names_size(count):
        raise ValueError(f"{count} names do not fit into {len(answer)} bytes")
    starts = range(_STRINGS.size, names_size(count), _NAME_BYTES)
    return tuple(_unpadded(answer[start : start + _NAME_BYTES]) for start in starts)


def values_request(count: int) -> bytes:
    """Builds the head of `struct ethtool_stats`. The values follow it in the answer."""
    return _STATISTICS.pack(_GSTATS, count)


def values_size(count: int) -> int:
    """Returns the bytes of an answer with `count` values."""
    return _STATISTICS.size + count * 8


def parse_values(answer: Answer) -> tuple[int, ...]:
    """Returns the values. Raises ValueError where the answer is cut off."""
    count = _STATISTICS.unpack_from(answer)[1]
    if len(answer) < values_size(count):
        raise ValueError(f"{count} values do not fit into {len(answer)} bytes")
    return struct.unpack_from(f"={count}Q", answer, _STATISTICS.size)


def _unpadded(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("ascii", "replace").strip()
