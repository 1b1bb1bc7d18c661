"""The kernel's structs of the ethtool ioctl (include/uapi/linux/ethtool.h), built and taken apart."""

from __future__ import annotations

import mmap
import struct

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
