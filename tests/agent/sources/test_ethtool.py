"""The ethtool collector and its ioctl on interfaces of this kernel, and the rules for statistics."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources import ethtool as structs
from rankwatch_agent.sources.ethtool import DriverStatistics, EthtoolCollector, select
from rankwatch_agent.sources.network import DeviceFilter
from support.servers.netns import Namespace, namespace_with_cable

IN_NAMESPACE = """
import fcntl, json, socket, struct, subprocess
from pathlib import Path
from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.ethtool import SIOCETHTOOL, interface_request
from rankwatch_agent.sources.ethtool import EthtoolCollector, ExportedStatistic
from rankwatch_agent.sources.network import DeviceFilter

asked = []

def select(names):
    asked.append(len(names))
    each = metric("rankwatch_network_hardware_errors_total")
    exported = ExportedStatistic(each, ("peer_ifindex",), 0.5)
    return {at: exported for at, name in enumerate(names) if name == "peer_ifindex"}

def collector(sysfs="/sys", **options):
    return EthtoolCollector(
        sysfs=Path(sysfs), device_filter=DeviceFilter(include=("v*",)), schedule=Schedule(10, 5), **options
    )

def found(collector):
    try:
        return {series.labels[0]: series.value for series in collector.collect().series}
    except NotApplicable as error:
        return str(error)
"""


@pytest.fixture(scope="module")
def cable() -> Iterator[Namespace]:
    with namespace_with_cable("ethtool") as namespace:
        yield namespace


@pytest.mark.process
def test_statistics_of_the_interface(cable: Namespace) -> None:
    """Each end of a cable reports the number of the other, here halved. Names are requested once."""
    code = """
ethtool = collector(select=select)
index = {name: int(Path(f"/sys/class/net/{name}/ifindex").read_text()) for name in ("v0", "v1")}
print(json.dumps([index, found(ethtool), found(ethtool), len(asked)]))
"""
    index, first, second, times = json.loads(cable.python(IN_NAMESPACE + code))
    assert first == second == {"v0": index["v1"] / 2, "v1": index["v0"] / 2}
    assert times == 2


@pytest.mark.process
def test_new_number_of_statistics(cable: Namespace) -> None:
    """With more queues a driver has its statistics at other positions."""
    code = """
import array

def set_queues(count):
    channels = array.array("I", [0x3D, 0, 0, 0, 0, count, count, 0, 0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, interface_request("v0", channels.buffer_info()[0]))

ethtool = collector(select=select)
set_queues(1)
before = found(ethtool)
set_queues(4)
print(json.dumps([before, found(ethtool), asked]))
"""
    before, after, asked = json.loads(cable.python(IN_NAMESPACE + code))
    assert before == after
    assert len(asked) == 3
    assert asked[2] > asked[0]


@pytest.mark.process
def test_new_carrier(cable: Namespace) -> None:
    """A link that comes up may bring other statistics."""
    code = """
ethtool = collector(select=select)
found(ethtool)
for name in ("v0", "v1"):
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
found(ethtool)
print(json.dumps(asked))
"""
    answer = json.loads(cable.python(IN_NAMESPACE + code))
    assert len(answer) == 4


@pytest.mark.process
def test_driver_without_known_statistics(cable: Namespace) -> None:
    """veth counts none of them."""
    assert "no statistics of pauses" in cable.python(IN_NAMESPACE + "print(found(collector()))")


@pytest.mark.process
def test_interface_of_another_namespace(cable: Namespace, tmp_path: Path) -> None:
    """With the host's sysfs in a pod, the host's eth0 is not the pod's, even if the numbers agree."""
    code = f"""
here, there = Path("/sys/class/net/v0"), Path({str(tmp_path)!r}) / "class/net/v0"
there.mkdir(parents=True)
for name in ("ifindex", "address", "carrier_changes"):
    (there / name).write_text((here / name).read_text())
print(found(collector({str(tmp_path)!r}, select=select)))
(there / "carrier_changes").write_text("77")
for name, text in (("address", "02:00:00:00:00:99"), ("ifindex", "4711")):
    (there / name).write_text(text)
    print(found(collector({str(tmp_path)!r}, select=select)))
    (there / name).write_text((here / name).read_text())
"""
    answer = cable.python(IN_NAMESPACE + code).splitlines()
    assert answer[0].startswith("{'v0': ")
    assert answer[1:] == ["v0 lies in another network namespace"] * 2


@pytest.mark.process
def test_files_among_the_interfaces(tmp_path: Path) -> None:
    """The bonding driver keeps one there."""
    (tmp_path / "class/net").mkdir(parents=True)
    (tmp_path / "class/net/bonding_masters").write_text("bond0\n")
    with pytest.raises(NotApplicable, match="ethtool has nothing to read"):
        EthtoolCollector(sysfs=tmp_path, device_filter=DeviceFilter(), schedule=Schedule(10, 5)).collect()


PAUSE = "rankwatch_network_pause_frames_total"
SECONDS = "rankwatch_network_pause_seconds_total"
DISCARD = "rankwatch_network_discards_total"
ERROR = "rankwatch_network_hardware_errors_total"


def chosen(*names: str) -> dict[str, tuple[str, ...]]:
    """The driver's name -> (metric, labels...)."""
    return {names[at]: (each.metric.name, *each.labels) for at, each in select(names).items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rx_prio3_pause", (PAUSE, "receive", "3")),
        ("tx_prio0_pause", (PAUSE, "transmit", "0")),
        ("rx_global_pause", (PAUSE, "receive", "global")),
        ("tx_pause_ctrl_phy", (PAUSE, "transmit", "global")),
        ("tx_prio3_pause_duration", (SECONDS, "transmit", "3")),
        ("rx_discards_phy", (DISCARD, "receive", "rx_discards_phy")),
        ("tx_discards_phy", (DISCARD, "transmit", "tx_discards_phy")),
        ("rx_prio5_discards", (DISCARD, "receive", "rx_prio5_discards")),
        ("rx_prio5_buf_discard", (DISCARD, "receive", "rx_prio5_buf_discard")),
        ("rx_out_of_buffer", (DISCARD, "receive", "rx_out_of_buffer")),
        ("rx_pci_signal_integrity", (ERROR, "rx_pci_signal_integrity")),
        ("link_down_events_phy", (ERROR, "link_down_events_phy")),
        ("rx_pfc_ena_frames_pri7", (PAUSE, "receive", "7")),
        ("pfc_pri2_rx_duration_us", (SECONDS, "receive", "2")),
        ("rx_stat_discard", (DISCARD, "receive", "rx_stat_discard")),
        ("tx_priority_4_xoff.nic", (PAUSE, "transmit", "4")),
        ("port.rx_priority_4_xoff", (PAUSE, "receive", "4")),
        ("link_xoff_rx.nic", (PAUSE, "receive", "global")),
        ("port.link_xoff_tx", (PAUSE, "transmit", "global")),
        ("rx_dropped.nic", (DISCARD, "receive", "rx_dropped.nic")),
        ("tx_dropped_link_down.nic", (DISCARD, "transmit", "tx_dropped_link_down.nic")),
        ("port.tx_dropped_link_down", (DISCARD, "transmit", "port.tx_dropped_link_down")),
        ("rx_crc_errors.nic", (ERROR, "rx_crc_errors.nic")),
        ("rx_drops", (DISCARD, "receive", "rx_drops")),
        ("bw_in_allowance_exceeded", (DISCARD, "receive", "bw_in_allowance_exceeded")),
        ("bw_out_allowance_exceeded", (DISCARD, "transmit", "bw_out_allowance_exceeded")),
        ("pps_allowance_exceeded", (DISCARD, "", "pps_allowance_exceeded")),
    ],
)
@pytest.mark.process
def test_known_statistics(name: str, expected: tuple[str, ...]) -> None:
    """mlx5, bnxt_en, ice, i40e, ena."""
    assert chosen(name) == {name: expected}


@pytest.mark.parametrize(
    "name",
    [
        *("rx_bytes", "rx_prio3_bytes", "rx3_packets", "rx_prio3_pause_transition", "tx_priority_4_xon.nic"),
        *("rx_queue_0_xdp_drops", "[0]: rx_discards", "xrx_discards_phy", ""),
    ],
)
@pytest.mark.process
def test_unknown_statistics(name: str) -> None:
    """Thousands of queues, bytes that other collectors count, frames that end a pause."""
    assert chosen(name) == {}


@pytest.mark.process
def test_durations_are_in_seconds() -> None:
    """mlx5 and bnxt_en count microseconds."""
    found = select(["rx_prio3_pause_duration", "rx_prio3_pause"])
    assert [found[0].factor, found[1].factor] == [1e-6, 1]


@pytest.mark.process
def test_two_statistics_of_one_series() -> None:
    """mlx5 counts global pauses twice. The more exact one is used, in either order."""
    both = ("rx_pause_ctrl_phy", "rx_global_pause")
    assert set(chosen(*both)) == {"rx_global_pause"}
    assert set(chosen(*reversed(both))) == {"rx_global_pause"}


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
