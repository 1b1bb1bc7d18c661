"""The GPUs of this node as they were last seen, shared by all collectors that speak of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

ExportedKey = tuple[str, tuple[str, ...]]
"""Name of a metric and the values of its labels."""


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What a GPU is called; it outlives the GPU itself."""

    uuid: str
    """GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx."""
    pci_bus_id: str
    """In the kernel's form, lower case: 0000:3b:00.0."""
    index: int
    """NVML's number; not stable over reboots, and of use only where another source knows no better."""
    minor_number: int
    """N of /dev/nvidiaN; -1 where the driver does not tell."""
    model: str
    mig_uuids: tuple[str, ...] = ()
    """MIG-... of its instances."""
    pids: tuple[int, ...] = ()
    """Processes on it when it was last read, by their ids on the host."""


class GpuInventory:
    """Identities by UUID and PCI bus id. Any thread may read or publish.

    first_look_seconds: how long the first question waits for the first answer of the driver, so that
        collectors that start together with the agent do not find an empty node.
    """

    def __init__(self, first_look_seconds: float = 0.0) -> None:
        self._first_look_seconds = first_look_seconds
        self._looked = threading.Event()
        self._lock = threading.Lock()
        self._gpus: tuple[GpuIdentity, ...] = ()
        self._exported: frozenset[ExportedKey] = frozenset()

    def publish(self, gpus: Iterable[GpuIdentity], exported: Iterable[ExportedKey]) -> None:
        """Replace what is known: all GPUs seen so far, lost ones among them, and what NVML exports now."""
        with self._lock:
            self._gpus = tuple(gpus)
            self._exported = frozenset(exported)
        self._looked.set()

    def forget_exported(self) -> None:
        """NVML exports nothing for now; identities stay."""
        with self._lock:
            self._exported = frozenset()
        self._looked.set()

    def gpus(self) -> tuple[GpuIdentity, ...]:
        """Every GPU seen since the agent started."""
        self._wait_for_first_look()
        with self._lock:
            return self._gpus

    def exported(self) -> frozenset[ExportedKey]:
        """What NVML exports now: another source must not export it too."""
        self._wait_for_first_look()
        with self._lock:
            return self._exported

    def by_uuid(self, uuid: str) -> GpuIdentity | None:
        """The GPU of this UUID, or of a MIG instance of this UUID."""
        return next((gpu for gpu in self.gpus() if uuid == gpu.uuid or uuid in gpu.mig_uuids), None)

    def by_bus_id(self, bus_id: str) -> GpuIdentity | None:
        """The GPU at a PCI address, in whatever form a driver or a log writes it."""
        wanted = normalise_bus_id(bus_id)
        return next((gpu for gpu in self.gpus() if gpu.pci_bus_id == wanted), None)

    def _wait_for_first_look(self) -> None:
        self._looked.wait(self._first_look_seconds)
        self._looked.set()  # once is enough: a driver that hangs must not slow the others down


def normalise_bus_id(text: str) -> str:
    """The kernel's form of a PCI address: 00000000:3B:00.0, 0000:3b:00 and 3b:00.0 are one device.

    Text that is no PCI address comes back in lower case.
    """
    parts = text.strip().lower().split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    try:
        domain, bus, (device, _, function) = parts[0], parts[1], parts[2].partition(".")
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function or '0', 16):x}"
    except (ValueError, IndexError):
        return text.strip().lower()
