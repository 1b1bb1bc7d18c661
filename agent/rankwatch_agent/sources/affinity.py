"""Collector `affinity`: the NICs nearest to each GPU on the PCI bus, as `nvidia-smi topo -m` measures it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import takewhile
from pathlib import Path

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.kernel_files import list_names
from rankwatch_agent.sources.pci import PciDevice, is_address, is_virtual_function, locate
from rankwatch_agent.sources.shared import NodeShared


class Distance(StrEnum):
    """What a transfer between two devices passes, nearest first."""

    PIX = "pix"
    """At most one PCIe switch."""
    PXB = "pxb"
    """Several PCIe switches, but not the host bridge."""
    PHB = "phb"
    """The PCIe host bridge of a CPU."""
    NODE = "node"
    """Host bridges of one NUMA node."""
    SYS = "sys"
    """The link between NUMA nodes."""


@source(interval_seconds=60.0, deadline_seconds=10.0)
def affinity(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield AffinityCollector(sysfs=config.sysfs, inventory=shared.inventory, schedule=schedule)


class AffinityCollector:
    """Compares the GPUs of the inventory with the NICs of `sysfs`. A GPU that left the bus has no NIC."""

    name = "affinity"

    def __init__(self, *, sysfs: Path, inventory: GpuInventory, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._sysfs = sysfs
        self._inventory = inventory

    def collect(self) -> Collection:
        """Compare every GPU with every NIC. Raises NotApplicable where either is missing, CollectError."""
        gpus = {gpu.uuid: device for gpu in self._inventory.gpus() if (device := self._device(gpu))}
        if not gpus:
            raise NotApplicable("no known GPU is on the PCI bus")
        # On a machine without an RDMA device, the network interfaces on the PCI bus.
        nics = _devices(self._sysfs / "class" / "infiniband") or _devices(self._sysfs / "class" / "net")
        if not nics:
            raise NotApplicable("there is no NIC on the PCI bus")
        return Collection(
            tuple(
                sample("rankwatch_gpu_nic_affinity_info", (uuid, nic, between.value), 1)
                for uuid, device in gpus.items()
                for nic, between in nearest(device, nics).items()
            )
        )

    def _device(self, gpu: GpuIdentity) -> PciDevice | None:
        if not is_address(gpu.pci_bus_id):
            return None
        return locate(str(self._sysfs / "bus" / "pci" / "devices" / gpu.pci_bus_id))


def _devices(directory: Path) -> dict[str, PciDevice]:
    """Return the devices without virtual functions. Raises CollectError where they cannot be listed."""
    try:
        names = list_names(str(directory))
    except NotApplicable:
        return {}
    links = {name: f"{directory}/{name}/device" for name in names}
    return {
        name: device
        for name, link in links.items()
        if (device := locate(link)) is not None and not is_virtual_function(link)
    }


def nearest(gpu: PciDevice, nics: Mapping[str, PciDevice]) -> dict[str, Distance]:
    """Return the NICs at the shortest known distance from the GPU, and that distance."""
    known = {name: between for name, nic in nics.items() if (between := distance(gpu, nic)) is not None}
    shortest = next((each for each in Distance if each in known.values()), None)
    return {name: between for name, between in known.items() if between is shortest}


def distance(one: PciDevice, other: PciDevice) -> Distance | None:
    """Return what lies between the two devices; None where that takes NUMA nodes which are unknown."""
    # Of both paths, the bridges with which they begin: the first is the host bridge.
    shared = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.bridges, other.bridges, strict=False))
    )
    if shared == 0:
        if one.numa_node is None or other.numa_node is None:
            return None
        return Distance.NODE if one.numa_node == other.numa_node else Distance.SYS
    if shared == 1:
        return Distance.PHB
    # Below one switch each device has one bridge of its own, the downstream port.
    own = max(len(one.bridges), len(other.bridges)) - shared
    return Distance.PIX if own <= 1 else Distance.PXB
