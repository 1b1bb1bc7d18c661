"""The RDMA collector on trees of files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.network import DeviceFilter
from rankwatch_agent.sources.rdma import (
    IDENTITY_SECONDS,
    STATE_RETRY_SECONDS,
    PortIdentity,
    RdmaCollector,
    read_identity,
)
from rankwatch_agent.sources.rdma_counters import MAX_FAILURES, SysfsFiles
from support.agent.process import ManualClock, values
from support.sources.node_tree import add_interface, add_pci, add_rdma, build_node, port_files

ALL = DeviceFilter(exclude=())
PORT = "class/infiniband/mlx5_0/ports/1"


def rdma(sysfs: Path, devices: DeviceFilter = ALL, *, clock: ManualClock | None = None) -> RdmaCollector:
    clock = clock or ManualClock()
    return RdmaCollector(sysfs=sysfs, device_filter=devices, schedule=Schedule(5, 5), monotonic=clock)


def one_port(sysfs: Path, counters: dict[str, object], hardware: dict[str, object], **files: object) -> Path:
    """A tree with one device mlx5_0 of one port; its /sys."""
    device = add_pci(sysfs, "pci0000:16/0000:16:01.0", "0x020700", driver="mlx5_core", numa_node=0)
    add_rdma(sysfs, device, "mlx5_0", port_files(counters, hardware, **files))
    return sysfs


def found(collector: RdmaCollector) -> dict[tuple[str, ...], float]:
    """(name without its prefix, labels...) -> value."""
    return {
        (name.removeprefix("rankwatch_rdma_"), *labels): value
        for (name, *labels), value in values([collector.collect()]).items()
    }


def names(series: Iterable[tuple[str, ...]]) -> set[str]:
    """The metric of plain series, the counter of those that have one."""
    return {key[3] if len(key) == 4 else key[0] for key in series}


def test_device_filter(tmp_path: Path) -> None:
    """Virtual functions are read if included by name. Excluded devices are not read."""
    sysfs = build_node(tmp_path).sysfs
    named = found(rdma(sysfs, DeviceFilter(include=("mlx5_vf*",), exclude=())))
    assert {key[1] for key in named} == {"mlx5_vf0"}
    without = found(rdma(sysfs, DeviceFilter(exclude=("efa_*", "mlx5_[1-7]"))))
    assert {key[1] for key in without} == {"mlx5_0"}


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("state", {"port_up", "active", "port_rate_bytes"}),
        ("phys_state", {"link_up"}),
        ("rate", {"port_rate_bytes"}),
        ("counters/symbol_error", {"symbol_error"}),
        ("counters/port_rcv_data", {"receive_bytes_total"}),
        ("hw_counters/out_of_buffer", {"out_of_buffer"}),
    ],
)
@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "directory", "binary"])
def test_broken_file(tmp_path: Path, file: str, lost: set[str], how: str) -> None:
    """All other series of the port stay, and all of the other ports."""
    sysfs = build_node(tmp_path, gpus=0, ports=2, odd=False).sysfs
    whole = found(rdma(sysfs))
    path = sysfs / PORT / file
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how != "missing":
        path.write_bytes({"empty": b"", "garbage": b"garbage\n", "binary": b"\xff\x00"}[how])
    left = found(rdma(sysfs))
    gone = set(whole) - set(left)
    assert names(gone) == lost
    assert {key[1] for key in gone} == {"mlx5_0"}
    assert set(left) <= set(whole)


def test_port_down(tmp_path: Path) -> None:
    """It has no speed: the kernel shows the lowest one as a placeholder."""
    down = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "2.5 Gb/sec (1X SDR)"}
    series = found(rdma(one_port(tmp_path, {}, {}, **down)))
    assert {key: value for key, value in series.items() if key[0] != "port_info"} == {
        ("port_up", "mlx5_0", "1"): 0,
        ("port_state", "mlx5_0", "1", "down"): 1,
        ("port_physical_state", "mlx5_0", "1", "disabled"): 1,
    }


def test_port_comes_up(tmp_path: Path) -> None:
    """Counters that failed while it was down are read at once."""
    sysfs = one_port(tmp_path, {"symbol_error": "N/A (no PMA)"}, {}, state="1: DOWN")
    collector = rdma(sysfs)
    for _ in range(MAX_FAILURES + 1):
        assert "symbol_error" not in names(found(collector))
    (sysfs / PORT / "counters/symbol_error").write_text("3\n")
    assert "symbol_error" not in names(found(collector))
    (sysfs / PORT / "state").write_text("4: ACTIVE\n")
    assert found(collector)["errors_total", "mlx5_0", "1", "symbol_error"] == 3


def test_failing_state_is_retried_soon(tmp_path: Path) -> None:
    """A port that is back must be seen soon."""
    clock = ManualClock()
    sysfs = one_port(tmp_path, {}, {}, state="garbage")
    collector = rdma(sysfs, clock=clock)
    for _ in range(MAX_FAILURES + 1):
        assert "port_up" not in names(found(collector))
    (sysfs / PORT / "state").write_text("4: ACTIVE\n")
    assert "port_up" not in names(found(collector))
    clock.now += STATE_RETRY_SECONDS
    assert found(collector)["port_up", "mlx5_0", "1"] == 1


@pytest.mark.parametrize(("state", "up"), [("up", 1), ("down", 0), ("unknown", None)])
def test_efa_link(tmp_path: Path, state: str, up: int | None) -> None:
    """From its network interface, where that exists and knows."""
    device = add_pci(tmp_path, "pci0000:00/0000:00:1d.0", "0x020000", driver="efa")
    add_rdma(tmp_path, device, "efa_0", port_files({}, {}))
    add_interface(tmp_path, device, "eth1", operstate=state)
    assert found(rdma(tmp_path)).get(("port_up", "efa_0", "1")) == up


def test_total_keeps_its_counter(tmp_path: Path) -> None:
    """The driver's own byte count started at another time, so a failed read leaves a gap."""
    sysfs = one_port(tmp_path, {"port_rcv_data": 25}, {"rx_bytes": 101})
    collector = rdma(sysfs)
    assert found(collector)["receive_bytes_total", "mlx5_0", "1"] == 100
    (sysfs / PORT / "counters/port_rcv_data").write_text("N/A (no PMA)\n")
    assert "receive_bytes_total" not in names(found(collector))


def test_repeated_counters(tmp_path: Path) -> None:
    """mlx5 repeats port counters at the device in switchdev mode."""
    sysfs = one_port(tmp_path, {}, {"out_of_buffer": 5})
    own = sysfs / "class/infiniband/mlx5_0/hw_counters"
    own.mkdir()
    (own / "out_of_buffer").write_text("5\n")
    assert ("errors_total", "mlx5_0", "", "out_of_buffer") not in found(rdma(sysfs))


def test_identity_is_refreshed(tmp_path: Path) -> None:
    """Firmware is updated, interfaces are renamed."""
    clock = ManualClock()
    sysfs = build_node(tmp_path, gpus=0, ports=1, odd=False).sysfs
    collector = rdma(sysfs, clock=clock)

    def firmware() -> str:
        (version,) = (key[5] for key in found(collector) if key[0] == "port_info")
        return version

    assert firmware() == "28.39.2000"
    (sysfs / "class/infiniband/mlx5_0/fw_ver").write_text("28.40.1000\n")
    assert firmware() == "28.39.2000"
    clock.now += IDENTITY_SECONDS
    assert firmware() == "28.40.1000"


def test_device_disappears(tmp_path: Path) -> None:
    """Only its series go, and they return with it, whatever failed before."""
    sysfs = build_node(tmp_path, gpus=0, ports=2, odd=False).sysfs
    collector = rdma(sysfs)
    whole = found(collector)
    link = sysfs / "class/infiniband/mlx5_0"
    target = link.readlink()
    link.unlink()
    assert {key[1] for key in found(collector)} == {"mlx5_1"}
    link.symlink_to(target)
    assert found(collector) == whole


def test_device_without_ports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its driver is half loaded, or its link is broken."""
    sysfs = build_node(tmp_path, gpus=0, ports=3, odd=False).sysfs
    shutil.rmtree(sysfs / "class/infiniband/mlx5_0/ports/1")
    (sysfs / "class/infiniband/mlx5_1").unlink()
    (sysfs / "class/infiniband/mlx5_1").symlink_to("../../devices/gone")
    with caplog.at_level(logging.WARNING):
        assert {key[1] for key in found(rdma(sysfs))} == {"mlx5_2"}
    assert "holds no port" in caplog.text


def test_node_without_rdma(tmp_path: Path) -> None:
    """No class, or no selected device."""
    with pytest.raises(NotApplicable):
        rdma(tmp_path).collect()
    with pytest.raises(NotApplicable):
        rdma(one_port(tmp_path, {}, {}), DeviceFilter(exclude=("*",))).collect()


def test_unreadable_class(tmp_path: Path) -> None:
    """Unlike a node without RDMA, it is an error."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class/infiniband").symlink_to("infiniband")
    with pytest.raises(CollectError, match="could not list"):
        rdma(tmp_path).collect()


WHOLE = PortIdentity(
    "InfiniBand", "MT_0000000838", "28.39.2000", "MT4129", "ib0", "0000:19:00.0", "0", "mlx5_core"
)


def identity(device: Path, port: str = "1") -> PortIdentity:
    return read_identity(SysfsFiles(), str(device), port)


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("board_id", {"board"}),
        ("fw_ver", {"firmware_version"}),
        ("hca_type", {"hca_type"}),
        ("ports/1/link_layer", {"link_layer"}),
        ("device/driver", {"driver"}),
        ("device/numa_node", {"numa_node"}),
        ("device/net/ib0/dev_port", set()),
        ("device", {"network_device", "pci_bus_id", "numa_node", "driver"}),
    ],
)
def test_missing_identity_files(tmp_path: Path, file: str, lost: set[str]) -> None:
    """The other fields stay, so that dashboards can join on them."""
    device = build_node(tmp_path, gpus=0, ports=1, odd=False).sysfs / "class/infiniband/mlx5_0"
    assert identity(device) == WHOLE
    (device / file).unlink()
    assert identity(device) == WHOLE._replace(**dict.fromkeys(lost, ""))


def test_interface_by_port_number(tmp_path: Path) -> None:
    """A card with two ports has two interfaces on one PCI function."""
    device = add_pci(tmp_path, "pci0000:16/0000:16:01.0", "0x020000", driver="mlx4_core")
    second = {name.replace("ports/1", "ports/2"): text for name, text in port_files({}, {}).items()}
    card = add_rdma(tmp_path, device, "mlx4_0", {**port_files({}, {}), **second})
    add_interface(tmp_path, device, "eth8", dev_port=1)
    add_interface(tmp_path, device, "eth9", dev_port=0)
    assert [identity(card, port).network_device for port in ("1", "2", "3")] == ["eth9", "eth8", ""]


def test_interface_by_gid(tmp_path: Path) -> None:
    """For example RoCE over a bond."""
    device = add_pci(tmp_path, "pci0000:16/0000:16:02.0", "0x020000")
    files = {**port_files({}, {}), "ports/1/gid_attrs/ndevs/0": "bond0"}
    assert identity(add_rdma(tmp_path, device, "rxe_0", files)).network_device == "bond0"
