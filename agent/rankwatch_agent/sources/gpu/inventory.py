"""The GPUs of this node as they were last seen, shared by all collectors that label by GPU.

Schedulers name GPUs in half a dozen forms. Which users have processes on a GPU, the driver knows better than
a black box, which may name any.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
        """Return every GPU seen since the agent started."""
        self._wait_for_first()
        with self._lock:
            return self._gpus

    def exported(self) -> frozenset[ExportedKey]:
        """Return the series that NVML exports now: no other source may export them too."""
        self._wait_for_first()
        with self._lock:
            return self._exported

    def by_uuid(self, uuid: str) -> GpuIdentity | None:
        """Return the GPU with this UUID, or with a MIG instance of this UUID."""
        return next((gpu for gpu in self.gpus() if uuid == gpu.uuid or uuid in gpu.mig_uuids), None)

    def by_bus_id(self, bus_id: str) -> GpuIdentity | None:
        """Return the GPU at a PCI address, in any form that a driver or a log uses."""
        wanted = normalise_bus_id(bus_id)
        return next((gpu for gpu in self.gpus() if gpu.pci_bus_id == wanted), None)

    def _wait_for_first(self) -> None:
        self._published.wait(self._first_wait_seconds)
        self._published.set()  # only the first call waits: a hung driver must not slow the others down


def normalise_bus_id(text: str) -> str:
    """Return a PCI address in the kernel's form: 00000000:3B:00.0, 0000:3b:00 and 3b:00.0 are one device.

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


_MIG_INFO = "rankwatch_gpu_mig_info"

_REPLICA = "::"
"""The device plugin's time slicing: GPU-...::3 is the fourth share of the GPU."""
_OLD_MIG = re.compile(r"mig-(gpu-[0-9a-f-]{1,64})/(\d{1,3})/(\d{1,3})")
"""Drivers before R470: MIG-GPU-.../1/0 is GPU, GPU instance and compute instance."""
_DEVICE_NODE = re.compile(r"nvidia(\d{1,4})(?:/gi(\d{1,3}))?(?:/vgpu\d{1,5})?")
"""GKE's device plugin: N of /dev/nvidiaN, GPU instance, share."""
_DRA_DEVICE = re.compile(r"gpu-(\d{1,4})(-mig-[0-9a-z-]{1,48})?")
"""NVIDIA's driver for Dynamic Resource Allocation: N of /dev/nvidiaN. A MIG instance also has its profile and
placement, which do not lead to its UUID."""


class FoundGpu(NamedTuple):
    """A GPU, or a MIG instance of it."""

    gpu: str
    """UUID."""
    mig: str
    """UUID of the instance, empty for the whole GPU. Where the UUID is unknown: `gpu_instance N`, or the name
    that the scheduler gives it."""


class GpuFinder:
    """Looks GPUs up in the identities given at its creation."""

    def __init__(self, gpus: Iterable[GpuIdentity], exported: Iterable[ExportedKey] = ()) -> None:
        self._by_uuid: dict[str, FoundGpu] = {}
        self._by_node: dict[int, str] = {}
        self._by_index: dict[int, str] = {}
        for gpu in gpus:
            self._by_uuid[gpu.uuid.lower()] = FoundGpu(gpu.uuid, "")
            for mig in gpu.mig_uuids:
                self._by_uuid[mig.lower()] = FoundGpu(gpu.uuid, mig)
            self._by_index[gpu.index] = gpu.uuid
            # Both numbers are equal on nearly all machines, and a driver without the minor number still
            # reports the index.
            self._by_node[gpu.minor_number if gpu.minor_number >= 0 else gpu.index] = gpu.uuid
        self._instances = _instances(exported)

    def by_device_id(self, device_id: str) -> FoundGpu | None:
        """Return the GPU of a Kubernetes device id or DRA device name, or None where it is unknown here."""
        name = device_id.partition(_REPLICA)[0]
        folded = name.lower()  # DRA writes UUIDs in lower case
        known = self._by_uuid.get(folded)
        if known is not None:
            return known
        if old := _OLD_MIG.fullmatch(folded):
            parent = self._by_uuid.get(old[1])
            return self.instance(parent.gpu, int(old[2]), name=name, compute=int(old[3])) if parent else None
        numbered = _DEVICE_NODE.fullmatch(folded) or _DRA_DEVICE.fullmatch(folded)
        gpu = self._by_node.get(int(numbered[1])) if numbered else None
        if numbered is None or gpu is None:
            return None
        if numbered[2] is None:
            return FoundGpu(gpu, "")
        if numbered[2].isdecimal():
            return self.instance(gpu, int(numbered[2]))
        return FoundGpu(gpu, folded)

    def by_index(self, index: int, instance: int | None = None) -> FoundGpu | None:
        """Return the GPU with NVML's number `index`, or a GPU instance of it; None where there is none."""
        gpu = self._by_index.get(index)
        if gpu is None:
            return None
        if instance is None:
            return FoundGpu(gpu, "")
        return self.instance(gpu, instance)

    def instance(
        self, gpu: str, instance: int | str, *, name: str = "", compute: int | None = None
    ) -> FoundGpu:
        """Return a MIG instance by its numbers.

        If not exactly one instance matches, `name` or `gpu_instance N` stands for its UUID.
        """
        uuids = [
            mig
            for mig, compute_instance in self._instances.get((gpu, str(instance)), ())
            if compute is None or compute_instance == str(compute)
        ]
        return FoundGpu(gpu, uuids[0] if len(uuids) == 1 else name or f"gpu_instance {instance}")


def _instances(exported: Iterable[ExportedKey]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Map (GPU, GPU instance) to UUID and compute instance of its MIG instances, from exported series."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, labels in exported:
        if name == _MIG_INFO:
            gpu, mig, _, instance, compute = labels
            found.setdefault((gpu, instance), []).append((mig, compute))
    return found


_MPS = "nvidia-cuda-mps"
"""How the names of NVIDIA's servers begin that compute for processes of other users."""
_MOST_STATUS_BYTES = 1 << 14


def gpu_users(gpus: Iterable[GpuIdentity], procfs: Path) -> Mapping[str, frozenset[int]]:
    """Return UUID -> ids of the users whose processes are on a GPU, or on one with this MIG instance.

    A GPU is left out where that cannot be told: no process was seen on it, or one that serves others.
    """
    found: dict[str, frozenset[int]] = {}
    for gpu in gpus:
        processes = [each for each in (_name_and_user(procfs, pid) for pid in gpu.pids) if each is not None]
        if processes and not any(name.startswith(_MPS) for name, _ in processes):
            users = frozenset(user for _, user in processes)
            found |= dict.fromkeys((gpu.uuid, *gpu.mig_uuids), users)
    return found


def _name_and_user(procfs: Path, pid: int) -> tuple[str, int] | None:
    """Return name and user id of a process; None where it has ended, or is hidden."""
    try:
        with (procfs / str(pid) / "status").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MOST_STATUS_BYTES).splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return fields["Name"], int(fields["Uid"].split("\t")[0])
    except (OSError, KeyError, ValueError):
        return None
