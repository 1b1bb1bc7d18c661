"""Finds the GPU that another program means: schedulers name the same device in half a dozen ways."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.inventory import ExportedKey, GpuIdentity

_MIG_INFO = metric("rankwatch_gpu_mig_info").name

_REPLICA = "::"
"""Time slicing by the device plugin: GPU-...::3 is the fourth share of the GPU."""
_OLD_MIG = re.compile(r"mig-(gpu-[0-9a-f-]{1,64})/(\d{1,3})/(\d{1,3})")
"""MIG-GPU-.../1/0: GPU, GPU instance and compute instance; drivers before R470 name MIG instances so."""
_DEVICE_NODE = re.compile(r"nvidia(\d{1,4})(?:/gi(\d{1,3}))?(?:/vgpu\d{1,5})?")
"""The device plugin of GKE: N of /dev/nvidiaN, GPU instance, share."""
_DRA_DEVICE = re.compile(r"gpu-(\d{1,4})(-mig-[0-9a-z-]{1,48})?")
"""NVIDIA's driver for Dynamic Resource Allocation: N of /dev/nvidiaN; of a MIG instance also profile and
placement, from which its UUID cannot be told."""


class FoundGpu(NamedTuple):
    """A GPU, or a MIG instance of it."""

    gpu: str
    """UUID."""
    mig: str
    """Empty where the whole GPU is meant; else the UUID of the instance. Where that is not known here:
    `gpu_instance N`, or the name the other program gives it."""


class GpuFinder:
    """Answers from the identities as they stood when it was made."""

    def __init__(self, gpus: Iterable[GpuIdentity], exported: Iterable[ExportedKey] = ()) -> None:
        self._by_uuid: dict[str, FoundGpu] = {}
        self._by_node: dict[int, str] = {}
        self._by_index: dict[int, str] = {}
        for gpu in gpus:
            self._by_uuid[gpu.uuid.lower()] = FoundGpu(gpu.uuid, "")
            for mig in gpu.mig_uuids:
                self._by_uuid[mig.lower()] = FoundGpu(gpu.uuid, mig)
            self._by_index[gpu.index] = gpu.uuid
            # Both numbers are alike on nearly all machines; a driver that hides one still shows the other.
            self._by_node[gpu.minor_number if gpu.minor_number >= 0 else gpu.index] = gpu.uuid
        self._instances = _instances(exported)

    def by_device_id(self, device_id: str) -> FoundGpu | None:
        """The GPU of a Kubernetes device id or of a DRA device name; None where it is none known here."""
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
        """The GPU of NVML's number, or a GPU instance of it; None where there is none of this number."""
        gpu = self._by_index.get(index)
        if gpu is None:
            return None
        if instance is None:
            return FoundGpu(gpu, "")
        return self._instance(gpu, instance)

    def _instance(self, gpu: str, instance: int, *, name: str = "", compute: int | None = None) -> FoundGpu:
        """A MIG instance by its numbers; where these lead to no UUID, by `name` or as dcgm-exporter's are."""
        uuids = [
            mig
            for mig, compute_instance in self._instances.get((gpu, str(instance)), ())
            if compute is None or compute_instance == str(compute)
        ]
        return FoundGpu(gpu, uuids[0] if len(uuids) == 1 else name or f"gpu_instance {instance}")


def _instances(exported: Iterable[ExportedKey]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """(GPU, GPU instance) -> UUID and compute instance of each MIG instance, as NVML exports them."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, labels in exported:
        if name == _MIG_INFO:
            gpu, mig, _, instance, compute = labels
            found.setdefault((gpu, instance), []).append((mig, compute))
    return found
