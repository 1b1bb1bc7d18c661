"""The GPUs of this node as they were last seen, shared by all collectors that label by GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

ExportedKey = tuple[str, tuple[str, ...]]
"""Name of a metric and the values of its labels."""


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """The names of a GPU. They are kept after the GPU is lost."""

    uuid: str
    """GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx."""
    pci_bus_id: str
    """In the kernel's form, lower case: 0000:3b:00.0."""
    index: int
    """NVML's number. It may change at a reboot: use it only for sources that know nothing better."""
    minor_number: int
    """N of /dev/nvidiaN; -1 where the driver does not know it."""
    model: str
    mig_uuids: tuple[str, ...] = ()
    """UUIDs of its MIG instances: MIG-..."""
    pids: tuple[int, ...] = ()
    """Processes on it at the last reading, by their ids on the host."""


class GpuInventory:
    """Identities by UUID and PCI bus id. Any thread may read or publish.

    first_wait_seconds: how long the first call waits for the driver's first answer, so that collectors
        that start together with the agent do not find an empty node.
    """

    def __init__(self, first_wait_seconds: float = 0.0) -> None:
        self._first_wait_seconds = first_wait_seconds
        self._published = threading.Event()
        self._lock = threading.Lock()
        self._gpus: tuple[GpuIdentity, ...] = ()
        self._exported: frozenset[ExportedKey] = frozenset()

    def publish(self, gpus: Iterable[GpuIdentity], exported: Iterable[ExportedKey]) -> None:
        """Replace both: all GPUs seen so far, including lost ones, and the series that NVML exports now."""
        with self._lock:
            self._gpus = tuple(gpus)
            self._exported = frozenset(exported)
        self._published.set()

    def forget_exported(self) -> None:
        """Record that NVML exports nothing now; identities stay."""
        with self._lock:
            self._exported = frozenset()
        self._published.set()

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU seen since the agent started."""
        self._wait_for_first()
        with self._lock:
            return self._gpus

    def exported(self) -> frozenset[ExportedKey]:
        """The series that NVML exports now: no other source may export them too."""
        self._wait_for_first()
        with self._lock:
            return self._exported

    def by_uuid(self, uuid: str) -> GpuIdentity | None:
        """The GPU with this UUID, or with a MIG instance of this UUID."""
        return next((gpu for gpu in self.gpus() if uuid == gpu.uuid or uuid in gpu.mig_uuids), None)

    def by_bus_id(self, bus_id: str) -> GpuIdentity | None:
        """The GPU at a PCI address, in any form that a driver or a log uses."""
        wanted = normalise_bus_id(bus_id)
        return next((gpu for gpu in self.gpus() if gpu.pci_bus_id == wanted), None)

    def _wait_for_first(self) -> None:
        self._published.wait(self._first_wait_seconds)
        self._published.set()  # only the first call waits: a hung driver must not slow the others down


def normalise_bus_id(text: str) -> str:
    """A PCI address in the kernel's form: 00000000:3B:00.0, 0000:3b:00 and 3b:00.0 are one device.

    Other text comes back in lower case.
    """
    parts = text.strip().lower().split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    try:
        domain, bus, (device, _, function) = parts[0], parts[1], parts[2].partition(".")
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function or '0', 16):x}"
    except (ValueError, IndexError):
        return text.strip().lower()
