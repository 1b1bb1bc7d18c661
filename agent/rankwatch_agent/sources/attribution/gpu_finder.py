"""Finds a GPU by the names that schedulers give it. There are half a dozen forms."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch_agent.sources.gpu.inventory import ExportedKey, GpuIdentity

_MIG_INFO = metric("rankwatch_gpu_mig_info").name

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
        """Returns the GPU of a Kubernetes device id or DRA device name, or None where it is unknown here."""
        name = device_id.partition(_REPLICA)[0]
        folded = name.lower()  # DRA writes UUIDs in lower case
        known = self._by_uuid.get(folded)
        if known is not None:
            return known
        if old := _OLD_MIG.fullmatch(folded):
            parent = self._by_uuid.get(old[1])
            return self._instance(parent.gpu, int(old[2]), name=name, compute=int(old[3])) if parent else None
        numbered = _DEVICE_NODE.fullmatch(folded) or _DRA_DEVICE.fullmatch(folded)
        gpu = self._by_node.get(int(numbered[1])) if numbered else None
        if numbered is None or gpu is None:
            return None
        if numbered[2] is None:
            return FoundGpu(gpu, "")
        if numbered[2].isdecimal():
            return self._instance(gpu, int(numbered[2]))
        return FoundGpu(gpu, folded)

    def by_index(self, index: int, instance: int | None = None) -> FoundGpu | None:
        """Returns the GPU with NVML's number `index`, or a GPU instance of it; None where there is none."""
        gpu = self._by_index.get(index)
        if gpu is None:
            return None
        if instance is None:
            return FoundGpu(gpu, "")
        return self._instance(gpu, instance)

    def _instance(self, gpu: str, instance: int, *, name: str = "", compute: int | None = None) -> FoundGpu:
        """Returns a MIG instance by its numbers.

        If not exactly one instance matches, `name` or `gpu_instance N` stands for its UUID.
        """
        uuids = [
            mig
            for mig, compute_instance in self._instances.get((gpu, str(instance)), ())
            if compute is None or compute_instance == str(compute)
        ]
        return FoundGpu(gpu, uuids[0] if len(uuids) == 1 else name or f"gpu_instance {instance}")


def _instances(exported: Iterable[ExportedKey]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Maps (GPU, GPU instance) to UUID and compute instance of its MIG instances, from exported series."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, labels in exported:
        if name == _MIG_INFO:
            gpu, mig, _, instance, compute = labels
            found.setdefault((gpu, instance), []).append((mig, compute))
    return found
