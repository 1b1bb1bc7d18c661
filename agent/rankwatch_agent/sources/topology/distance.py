"""How far two PCI devices are from each other, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

from enum import StrEnum

from rankwatch_agent.sources.topology.pci_device import PciDevice


class Distance(StrEnum):
    """What a transfer between two devices passes, nearest first."""

    PIX = "pix"
    """At most one PCIe switch."""
    PXB = "pxb"
    """Several PCIe switches, not the host bridge."""
    PHB = "phb"
    """The PCIe host bridge of a CPU."""
    NODE = "node"
    """Host bridges of one NUMA node."""
    SYS = "sys"
    """The link between NUMA nodes."""


NEAREST_FIRST = tuple(Distance)


def distance(one: PciDevice, other: PciDevice) -> Distance | None:
    """What lies between the two; None where the firmware does not tell their NUMA nodes and it matters."""
    shared = _shared(one.bridges, other.bridges)
    if shared == 0:
        if one.numa_node is None or other.numa_node is None:
            return None
        return Distance.NODE if one.numa_node == other.numa_node else Distance.SYS
    if shared == 1:
        return Distance.PHB
    # Inside one switch each device has one bridge, the downstream port, below the shared upstream port.
    own = max(len(one.bridges), len(other.bridges)) - shared
    return Distance.PIX if own <= 1 else Distance.PXB


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Length of the common beginning of both paths; the first entry is the host bridge."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
