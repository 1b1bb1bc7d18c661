"""The network collector and its parsers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.kernel_files import OutOfDescriptorsError
from rankwatch_agent.sources.network import (
    DeviceFilter,
    InterfaceCounters,
    NetworkCollector,
    node_network,
    parse_net_dev,
    parse_speed,
)
from support.agent.process import values
from support.processes.exhaustion import no_descriptors

HEAD = "Inter-|   Receive |  Transmit\n face |bytes packets errs drop ...\n"
ETH0 = "  eth0: 100 2 3 4 5 6 7 8 900 10 11 12 13 14 15 16\n"


def node(root: Path) -> NetworkCollector:
    """A node with one interface eth0."""
    files = {
        "proc/net/dev": HEAD + ETH0,
        "sys/class/net/eth0/operstate": "up\n",
        "sys/class/net/eth0/carrier_changes": "2\n",
        "sys/class/net/eth0/carrier_down_count": "1\n",
        "sys/class/net/eth0/mtu": "9000\n",
        "sys/class/net/eth0/speed": "25000\n",
        "sys/class/net/eth0/device/vendor": "0x15b3\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return NetworkCollector(
        procfs=root / "proc", sysfs=root / "sys", device_filter=DeviceFilter(), schedule=Schedule(5, 5)
    )


def test_parse_net_dev() -> None:
    """Names may touch the first number or hold a colon."""
    text = HEAD + ETH0 + "eth0:1:7 0 0 0 0 0 0 0 8 0 0 0 0 0 0 0\n"
    assert parse_net_dev(text) == (
        {"eth0": InterfaceCounters(100, 3, 4, 900, 11, 12), "eth0:1": InterfaceCounters(7, 0, 0, 8, 0, 0)},
        (),
    )
    assert parse_net_dev(HEAD) == ({}, ())


@pytest.mark.parametrize("text", ["", "Inter-|   Receive |  Transmit\n"])
def test_net_dev_without_heading(text: str) -> None:
    """An empty file is not a network without interfaces."""
    with pytest.raises(ValueError, match="heading"):
        parse_net_dev(text)


@pytest.mark.parametrize("text", ["-1", "0", "4294967295"])
def test_unknown_speed(text: str) -> None:
    """-1 and its unsigned twin mean unknown, 0 that the link is down."""
    assert parse_speed(text) is None


def test_speed_is_cached(tmp_path: Path) -> None:
    """Until the carrier changes: each read takes the kernel's RTNL lock."""
    network = node(tmp_path)
    speed = ("rankwatch_network_speed_bytes", "eth0")
    network.collect()
    (tmp_path / "sys/class/net/eth0/speed").write_text("10000\n")
    assert values([network.collect()])[speed] == 3.125e9
    (tmp_path / "sys/class/net/eth0/carrier_changes").write_text("4\n")
    assert values([network.collect()])[speed] == 1.25e9


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("operstate", {"up"}),
        ("carrier_changes", {"speed_bytes"}),
        ("carrier_down_count", {"link_flaps_total"}),
        ("mtu", {"mtu_bytes"}),
        ("speed", {"speed_bytes"}),
    ],
)
def test_missing_file(tmp_path: Path, file: str, lost: set[str]) -> None:
    """Without the count of carrier changes there is no speed: it would grow stale."""
    whole = set(values([node(tmp_path).collect()]))
    network = node(tmp_path)
    (tmp_path / "sys/class/net/eth0" / file).unlink()
    left = set(values([network.collect()]))
    assert {name for name, *_ in whole - left} == {f"rankwatch_network_{name}" for name in lost}


def test_no_identity_without_hardware(tmp_path: Path) -> None:
    """It has all other series."""
    network = node(tmp_path)
    shutil.rmtree(tmp_path / "sys/class/net/eth0/device")
    found = values([network.collect()])
    assert found["rankwatch_network_mtu_bytes", "eth0"] == 9000
    assert "rankwatch_network_info" not in {name for name, *_ in found}


def test_no_interface(tmp_path: Path) -> None:
    """A namespace with only a loopback."""
    network = node(tmp_path)
    (tmp_path / "proc/net/dev").write_text(HEAD)
    with pytest.raises(NotApplicable):
        network.collect()


def test_speed_is_retried_after_running_out_of_descriptors(tmp_path: Path) -> None:
    """Otherwise it would stay unknown until the carrier changes."""
    collector = node(tmp_path)
    with no_descriptors(), pytest.raises(OutOfDescriptorsError):
        collector._read_speed("eth0")
    assert values([collector.collect()])["rankwatch_network_speed_bytes", "eth0"] == 25e9 / 8


@pytest.mark.parametrize("text", ["9" * 400, "-1", ""])
def test_garbled_sysfs_file(tmp_path: Path, text: str) -> None:
    """Impossible numbers and empty states give no value."""
    collector = node(tmp_path)
    for name in ("mtu", "operstate"):
        (tmp_path / "sys/class/net/eth0" / name).write_text(text if name == "mtu" else "")
    found = values([collector.collect()])
    assert ("rankwatch_network_mtu_bytes", "eth0") not in found
    assert ("rankwatch_network_up", "eth0") not in found
    assert found["rankwatch_network_speed_bytes", "eth0"] == 3.125e9


@pytest.mark.parametrize("name", ["e" * 300, "e\0h"])
def test_impossible_interface_name(tmp_path: Path, name: str) -> None:
    """No sysfs path can be made of it. The other interfaces stay."""
    collector = node(tmp_path)
    (tmp_path / "proc/net/dev").write_text(f"{HEAD}{ETH0}{ETH0.replace('eth0', name)}")
    assert values([collector.collect()])["rankwatch_network_mtu_bytes", "eth0"] == 9000


@pytest.mark.parametrize(
    ("device_filter", "physical", "selected"),
    [
        (DeviceFilter(), {"eth0", "ib0"}, ["eth0", "ib0"]),
        (DeviceFilter(), set(), ["docker0", "eth0", "ib0", "veth1a2b"]),
        (DeviceFilter(include=("ib*", "docker*"), exclude=("docker0",)), {"eth0", "ib0"}, ["ib0"]),
    ],
    ids=[
        "only hardware: the bytes of a hundred virtual interfaces all pass a physical one",
        "a pod with its own network namespace sees one end of a virtual pair, and no hardware",
        "exclusion wins over inclusion",
    ],
)
def test_filter(device_filter: DeviceFilter, physical: set[str], selected: list[str]) -> None:
    """The loopback is never read."""
    names = ["lo", "eth0", "ib0", "docker0", "veth1a2b"]
    assert device_filter.select(names, frozenset(physical)) == selected


def test_network_of_the_node(tmp_path: Path) -> None:
    """An agent in a pod's own network sees the node's."""
    (tmp_path / "1/net").mkdir(parents=True)
    (tmp_path / "1/net/dev").touch()
    assert node_network(tmp_path) == tmp_path / "1/net"


def test_network_of_the_agent(tmp_path: Path) -> None:
    """Where /proc hides the processes of others."""
    assert node_network(tmp_path) == tmp_path / "net"
