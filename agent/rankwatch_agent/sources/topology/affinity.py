"""Collector `affinity`: the NICs nearest to each GPU, by their places on the PCI bus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.kernel_files import list_names
from rankwatch_agent.sources.topology.pci_device import PciDevice, is_address, is_virtual_function, locate


def find_nics(sysfs: Path) -> dict[str, PciDevice]:
    """The RDMA devices; on a machine without any, the network interfaces with a PCI device behind them.

    Virtual functions are left out. Raises CollectError where they cannot be listed.
    """
    return _devices(sysfs / "class" / "infiniband") or _devices(sysfs / "class" / "net")


def _devices(directory: Path) -> dict[str, PciDevice]:
    try:
        names = list_names(str(directory))
    except NotApplicable:
        return {}
    found = {}
    for name in names:
        link = f"{directory}/{name}/device"
        device = locate(link)
        if device is not None and not is_virtual_function(link):
            found[name] = device
    return found


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


_AFFINITY = metric("rankwatch_gpu_nic_affinity_info")


class AffinityCollector:
    """GPUs of the inventory against the NICs of `sysfs`. A GPU that left the bus has no NIC."""

    name = "affinity"

    def __init__(self, *, sysfs: Path, inventory: GpuInventory, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._sysfs = sysfs
        self._inventory = inventory

    def collect(self) -> Collection:
        """Compare every GPU with every NIC; raises NotApplicable where either is missing, CollectError."""
        gpus = {gpu.uuid: place for gpu in self._inventory.gpus() if (place := self._place(gpu))}
        if not gpus:
            raise NotApplicable("no GPU is known that is on the PCI bus")
        nics = find_nics(self._sysfs)
        if not nics:
            raise NotApplicable("there is no NIC on the PCI bus")
        return Collection(tuple(_series(gpus, nics)))

    def _place(self, gpu: GpuIdentity) -> PciDevice | None:
        if not is_address(gpu.pci_bus_id):
            return None
        return locate(str(self._sysfs / "bus" / "pci" / "devices" / gpu.pci_bus_id))


def nearest(gpu: PciDevice, nics: Mapping[str, PciDevice]) -> tuple[Distance, list[str]] | None:
    """The shortest distance from the GPU to a NIC, and all NICs at it; None where no distance is known."""
    by_distance: dict[Distance, list[str]] = {}
    for name, nic in nics.items():
        between = distance(gpu, nic)
        if between is not None:
            by_distance.setdefault(between, []).append(name)
    return next(((each, by_distance[each]) for each in NEAREST_FIRST if each in by_distance), None)


def _series(gpus: Mapping[str, PciDevice], nics: Mapping[str, PciDevice]) -> Iterator[Series]:
    for uuid, place in gpus.items():
        found = nearest(place, nics)
        if found is not None:
            yield from _of_gpu(uuid, *found)


def _of_gpu(uuid: str, between: Distance, names: Iterable[str]) -> Iterator[Series]:
    for name in names:
        yield Series(_AFFINITY, (uuid, name, between.value), 1)
