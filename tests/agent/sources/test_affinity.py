"""The NICs nearest to each GPU, and distances as in `nvidia-smi topo -m`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.affinity import AffinityCollector, Distance, distance
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.pci import PciDevice
from support.agent.process import values
from support.sources.node_tree import add_interface, add_pci, add_rdma, build_node, gpu_buses, link


def affinity(sysfs: Path, *bus_ids: str) -> AffinityCollector:
    """A collector for GPU-0, GPU-1, ... at these addresses."""
    inventory = GpuInventory()
    inventory.publish([GpuIdentity(f"GPU-{n}", bus, n, n, "H100") for n, bus in enumerate(bus_ids)], [])
    return AffinityCollector(sysfs=sysfs, inventory=inventory, schedule=Schedule(60, 10))


def found(collector: AffinityCollector) -> set[tuple[str, ...]]:
    """(gpu, device, distance) of every series, each of which is 1."""
    series = values([collector.collect()])
    assert set(series.values()) == {1}
    return {key[1:] for key in series}


def test_nearest_nics_elsewhere(tmp_path: Path) -> None:
    """The first switch's two NICs serve the GPUs of their socket through host bridges, and the others."""
    sysfs = build_node(tmp_path, ports=2, odd=False).sysfs
    buses = [f"0000:{bus:02x}:00.0" for bus in gpu_buses(8)]
    distances = ["pix", "pix", "node", "node", "sys", "sys", "sys", "sys"]
    assert found(affinity(sysfs, *buses)) == {
        (f"GPU-{gpu}", nic, each) for gpu, each in enumerate(distances) for nic in ("mlx5_0", "mlx5_1")
    }


def test_network_interfaces_without_rdma(tmp_path: Path) -> None:
    """Those on the PCI bus, by their own names."""
    gpu = add_pci(tmp_path, "pci0000:00/0000:00:06.0", "0x030200", "0x10de")
    nic = add_pci(tmp_path, "pci0000:00/0000:00:05.0", "0x020000")
    (nic / "virtio2").mkdir()
    add_interface(tmp_path, nic / "virtio2", "eth0")
    (tmp_path / "class/net/docker0").mkdir()
    link(tmp_path / "class/net/broken/device", tmp_path / "devices/gone")
    assert found(affinity(tmp_path, gpu.name)) == {("GPU-0", "eth0", "phb")}


def test_unknown_numa_nodes(tmp_path: Path) -> None:
    """Two host bridges may belong to one socket or two. A NIC whose place is known is used instead."""
    gpu = add_pci(tmp_path, "pci0000:16/0000:16:01.0", "0x030200", "0x10de", numa_node=0)
    unknown = add_pci(tmp_path, "pci0000:36/0000:36:01.0", "0x020000", numa_node=-1)
    add_rdma(tmp_path, unknown, "mlx5_0", {})
    collector = affinity(tmp_path, gpu.name)
    assert collector.collect().series == ()
    far = add_pci(tmp_path, "pci0000:96/0000:96:01.0", "0x020000", numa_node=1)
    add_rdma(tmp_path, far, "mlx5_1", {})
    assert found(collector) == {("GPU-0", "mlx5_1", "sys")}


def test_gpu_left_the_bus(tmp_path: Path) -> None:
    """The inventory still knows it. An invalid address leads nowhere."""
    sysfs = build_node(tmp_path, odd=False).sysfs
    collector = affinity(sysfs, "0000:1b:00.0", "0000:2b:00.0", "../../../class/net/eth0/device")
    (sysfs / "bus/pci/devices/0000:2b:00.0").unlink()
    assert {gpu for gpu, *_ in found(collector)} == {"GPU-0"}


def test_nic_disappears(tmp_path: Path) -> None:
    """Also a NIC whose link is broken."""
    sysfs = build_node(tmp_path, odd=False).sysfs
    collector = affinity(sysfs, "0000:1b:00.0")
    (sysfs / "class/infiniband/mlx5_0").unlink()
    assert found(collector) == {("GPU-0", "mlx5_1", "pix")}
    shutil.rmtree((sysfs / "bus/pci/devices/0000:29:00.0").resolve())
    assert found(collector) == {("GPU-0", nic, "node") for nic in ("mlx5_2", "mlx5_3")}


def test_no_gpus_or_nics(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="no known GPU"):
        affinity(build_node(tmp_path / "a").sysfs).collect()
    gpu = add_pci(tmp_path, "pci0000:16/0000:16:01.0", "0x030200", "0x10de", numa_node=0)
    with pytest.raises(NotApplicable, match="no NIC"):
        affinity(tmp_path, gpu.name).collect()


def test_unreadable_device_list(tmp_path: Path) -> None:
    """It is not a machine without NICs."""
    gpu = add_pci(tmp_path, "pci0000:16/0000:16:01.0", "0x030200", "0x10de", numa_node=0)
    (tmp_path / "class").mkdir()
    (tmp_path / "class/infiniband").symlink_to("infiniband")
    with pytest.raises(CollectError, match="could not list"):
        affinity(tmp_path, gpu.name).collect()


ROOT = ("pci0000:16", "0000:16:01.0")
SWITCH = (*ROOT, "0000:17:00.0")
LOWER = ("0000:20:0.0", "0000:21:0.0")


def at(*bridges: str, numa_node: int | None = 0) -> PciDevice:
    """A device below these bridges."""
    return PciDevice("0000:aa:00.0", bridges, numa_node)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # Two downstream ports of one switch.
        (at(*SWITCH, "0000:18:00.0"), at(*SWITCH, "0000:18:01.0"), Distance.PIX),
        # Two functions of one card.
        (at(*SWITCH, "0000:18:00.0"), at(*SWITCH, "0000:18:00.0"), Distance.PIX),
        # A switch below another one.
        (at(*SWITCH, "0000:18:00.0"), at(*SWITCH, "0000:18:01.0", *LOWER), Distance.PXB),
        # Two switches below one root port.
        (at(*SWITCH, "0000:18:00.0"), at(*ROOT, "0000:17:01.0", "0000:30:00.0"), Distance.PXB),
        # Two root ports of one host bridge, or devices right on it, as in a virtual machine.
        (at(*SWITCH, "0000:18:00.0"), at("pci0000:16", "0000:16:02.0"), Distance.PHB),
        (at("pci0000:00", numa_node=None), at("pci0000:00", numa_node=None), Distance.PHB),
        # Two host bridges.
        (at("pci0000:16"), at("pci0000:36"), Distance.NODE),
        (at("pci0000:16"), at("pci0000:96", numa_node=1), Distance.SYS),
        # Host bridges of which the firmware does not tell where they are: nothing is claimed.
        (at("pci0000:16", numa_node=None), at("pci0000:36"), None),
        (at("pci0000:16", numa_node=None), at("pci0000:36", numa_node=None), None),
    ],
)
def test_distance(one: PciDevice, other: PciDevice, expected: Distance | None) -> None:
    """The same in both directions."""
    assert distance(one, other) == expected
    assert distance(other, one) == expected
