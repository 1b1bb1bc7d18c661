"""What a port is, as far as its files tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.sources.rdma.collector import PortIdentity, read_identity
from rankwatch_agent.sources.rdma.sysfs import SysfsFiles
from support.sources.node_tree import add_interface, add_pci, add_rdma, build_node, port_files

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
def test_what_is_missing_is_empty(tmp_path: Path, file: str, lost: set[str]) -> None:
    """All else stays, so that dashboards can join on it."""
    device = build_node(tmp_path, gpus=0, ports=1, odd=False).sysfs / "class/infiniband/mlx5_0"
    assert identity(device) == WHOLE
    (device / file).unlink()
    assert identity(device) == WHOLE._replace(**dict.fromkeys(lost, ""))


def test_the_interface_of_a_port_is_the_one_with_its_number(tmp_path: Path) -> None:
    """A card with two ports has two interfaces on one PCI function."""
    device = add_pci(tmp_path, "pci0000:16/0000:16:01.0", "0x020000", driver="mlx4_core")
    second = {name.replace("ports/1", "ports/2"): text for name, text in port_files({}, {}).items()}
    card = add_rdma(tmp_path, device, "mlx4_0", {**port_files({}, {}), **second})
    add_interface(tmp_path, device, "eth8", dev_port=1)
    add_interface(tmp_path, device, "eth9", dev_port=0)
    assert [identity(card, port).network_device for port in ("1", "2", "3")] == ["eth9", "eth8", ""]


def test_without_an_interface_of_the_device_that_of_the_first_gid_counts(tmp_path: Path) -> None:
    """As with RoCE over a bond."""
    device = add_pci(tmp_path, "pci0000:16/0000:16:02.0", "0x020000")
    files = {**port_files({}, {}), "ports/1/gid_attrs/ndevs/0": "bond0"}
    assert identity(add_rdma(tmp_path, device, "rxe_0", files)).network_device == "bond0"
