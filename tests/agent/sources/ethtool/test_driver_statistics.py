"""The ioctl itself, on interfaces of this kernel."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.ethtool.ioctl import DriverStatistics
from support.servers.netns import Namespace, namespace_with_cable

READ = """
import json, socket
from pathlib import Path
from rankwatch_agent.sources.ethtool.ioctl import DriverStatistics
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


def test_a_drivers_names_and_values_are_read(cable: Namespace) -> None:
    """veth tells the number of its other end, which sysfs confirms."""
    answer = json.loads(cable.python(READ))
    assert answer["found"]["peer_ifindex"] == answer["peer"]
    assert len(answer["found"]) > 5


@pytest.mark.parametrize("interface", ["lo", "no-such-one", "a-name-of-more-than-15-bytes"])
def test_an_interface_without_statistics_is_not_applicable(interface: str) -> None:
    """The loopback's driver has none; one that has just vanished has none either."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, pytest.raises(NotApplicable):
        DriverStatistics(any_socket, interface).names()
