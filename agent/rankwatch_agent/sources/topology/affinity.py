"""Collector `affinity`: the NICs nearest to each GPU, by their places on the PCI bus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, NotApplicable, Series
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.topology.distance import NEAREST_FIRST, Distance, distance
from rankwatch_agent.sources.topology.nics import find_nics
from rankwatch_agent.sources.topology.pci_device import PciDevice, is_address, locate

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
