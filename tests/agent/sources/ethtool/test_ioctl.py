"""The ethtool ioctl on interfaces of this kernel, and its structs on literal bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources import ethtool as structs
from rankwatch_agent.sources.ethtool import DriverStatistics
from support.servers.netns import Namespace, namespace_with_cable

READ = """
import json, socket
from pathlib import Path
from rankwatch_agent.sources.ethtool import DriverStatistics
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    statistics = DriverStatistics(any_socket, "v0")
    names = statistics.names()
    found = dict(zip(names, statistics.values(len(names)), strict=True))
print(json.dumps({"found": found, "peer": int(Path("/sys/class/net/v1/ifindex").read_text())}))
"""


@pytest.fixture(scope="module")
def cable() -> Iterator[Namespace]:
    with namespace_with_cable("statistics") as namespace:
        yield namespace


@pytest.mark.process
def test_names_and_values(cable: Namespace) -> None:
    """veth reports the number of its other end, which sysfs confirms."""
    answer = json.loads(cable.python(READ))
    assert answer["found"]["peer_ifindex"] == answer["peer"]
    assert len(answer["found"]) > 5


@pytest.mark.parametrize("interface", ["lo", "no-such-one", "a-name-of-more-than-15-bytes"])
def test_interface_without_statistics(interface: str) -> None:
    """The loopback's driver has none, nor has an interface that just vanished."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, pytest.raises(NotApplicable):
        DriverStatistics(any_socket, interface).names()


def test_interface_request() -> None:
    """`struct ifreq` has 40 bytes on 64-bit machines: 16 for the name, then a union, here the pointer."""
    request = structs.interface_request("eth0", 0x0102030405060708)
    assert request == b"eth0" + bytes(12) + bytes([8, 7, 6, 5, 4, 3, 2, 1]) + bytes(16)


@pytest.mark.parametrize("name", ["a" * 16, "é" * 8])
def test_interface_name_is_too_long(name: str) -> None:
    """It would be cut, and name another interface."""
    with pytest.raises(ValueError):
        structs.interface_request(name, 0)


def test_statistics_count() -> None:
    """A cleared bit means that the driver has none, whatever stands behind it."""
    assert structs.count_request() == bytes([0x37, 0, 0, 0]) + bytes(4) + bytes([2]) + bytes(7) + bytes(4)
    head = bytes([0x37, 0, 0, 0, 0, 0, 0, 0])
    assert structs.parse_statistics_count(head + bytes([2]) + bytes(7) + bytes([5, 1, 0, 0])) == 261
    assert structs.parse_statistics_count(head + bytes(8) + bytes([5, 1, 0, 0])) == 0


def test_parse_names() -> None:
    """bnxt_en and others pad with spaces. Bytes outside ASCII are replaced."""
    assert structs.names_request(2) == bytes([0x1B, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])
    names = (b"rx_prio3_pause\0garbage", b"     tx_bytes", b"\xff", b"a" * 32)
    answer = structs.names_request(4) + b"".join(name.ljust(32, b"\0") for name in names) + bytes(100)
    assert structs.parse_names(answer) == ("rx_prio3_pause", "tx_bytes", "\ufffd", "a" * 32)


def test_parse_values() -> None:
    """As many as the answer says, not as many as there is room for."""
    assert structs.values_request(3) == bytes([0x1D, 0, 0, 0, 3, 0, 0, 0])
    answer = structs.values_request(2) + bytes([1]) + bytes(7) + b"\xff" * 8 + bytes(8)
    assert structs.parse_values(answer) == (1, 2**64 - 1)


@pytest.mark.process
def test_answer_is_cut_off() -> None:
    """Nothing behind the answer may be taken for a statistic."""
    with pytest.raises(ValueError):
        structs.parse_names(structs.names_request(2) + bytes(63))
    with pytest.raises(ValueError):
        structs.parse_values(structs.values_request(2) + bytes(15))
