"""Whether an interface in sysfs is the one that a socket would ask about.

The agent may see the host's sysfs and yet run in a network namespace of its own, whose `eth0` is another
one than the host's. Numbers of interfaces repeat between namespaces; hardware addresses do not.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from rankwatch_agent.runtime.collector import NotApplicable
from rankwatch_agent.sources.kernel_files import parse_kernel_file, read_kernel_file

_SIOCGIFINDEX = 0x8933
_SIOCGIFHWADDR = 0x8927
_IFREQ = struct.Struct("@16s24x")
_ADDRESS_AT = 18
_MOST_ADDRESS_BYTES = 14
"""`struct sockaddr` takes no more; an address of InfiniBand has 20."""


def check_same_interface(asked_over: socket.socket, directory: Path) -> None:
    """Compare number and hardware address; raises NotApplicable where they differ, CollectError."""
    index = parse_kernel_file(directory / "ifindex", int)
    address = parse_kernel_file(directory / "address", _parse_address)
    elsewhere = NotApplicable(f"{directory.name} lies in another network namespace")
    try:
        request = _IFREQ.pack(directory.name.encode("utf-8", "surrogateescape"))
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
