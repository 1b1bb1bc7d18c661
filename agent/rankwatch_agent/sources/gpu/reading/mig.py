"""MIG: a GPU cut into instances, each with its own memory and activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pynvml

from rankwatch.conventions.metrics import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.activity import Gpm, by_unit
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.units import MEMORY_BYTES

_INFO = metric("rankwatch_gpu_mig_info").name
_TOTAL = metric("rankwatch_gpu_mig_memory_total_bytes").name
_USED = metric("rankwatch_gpu_mig_memory_used_bytes").name
_ACTIVITY = metric("rankwatch_gpu_mig_activity_ratio").name
_MAX_INSTANCES = 16
"""Today a GPU has at most 7."""
_NAME_MARK = " MIG "
_EMPTY = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


class _Instance(NamedTuple):
    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int


def read_mode(gpu: Device) -> None:
    """Set `gpu.mig_enabled`: such a GPU has no utilisation and activity as a whole."""
    mode = gpu.query("mig", pynvml.nvmlDeviceGetMigMode)
    gpu.mig_enabled = mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


class Mig:
    """The MIG instances of one GPU."""

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Identity, memory and activity of each instance."""
        if not gpu.mig_enabled:
            return
        instances = list(_instances(gpu))
        gpu.mig_uuids = tuple(each.uuid for each in instances)
        sharers = Counter(each.gpu_instance for each in instances)
        for each in instances:
            yield from _identity_and_memory(gpu, each)
            # where compute instances share a GPU instance, what GPM measures belongs to none of them
            if sharers[each.gpu_instance] == 1 and self._gpm.supports(gpu):
                for unit, share in by_unit(gpu, self._gpm.measure(gpu, each.gpu_instance)).items():
                    yield gpu.sample(_ACTIVITY, share, each.uuid, unit)


def profile(name: str | None, attributes: Any) -> str:
    """Profile of an instance: from its name ("... MIG 1g.10gb"), else from its slices and its memory."""
    if name is not None and _NAME_MARK in name:
        return name.rpartition(_NAME_MARK)[2]
    if attributes is None:
        return ""
    compute, slices = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    part = f"{compute}c." if compute != slices else ""
    return f"{part}{slices}g.{-(-attributes.memorySizeMB // 1024)}gb"


def _instances(gpu: Device) -> Iterator[_Instance]:
    count = gpu.query("mig_instances", pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0
    for index in range(min(count, _MAX_INSTANCES)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
        except pynvml.NVMLError as error:
            if error.value not in _EMPTY:
                gpu.handle_error("mig_instances", error.value)
            continue
        uuid = gpu.query_part(handle, "mig_uuid", pynvml.nvmlDeviceGetUUID)
        gpu_instance = gpu.query_part(handle, "mig_ids", pynvml.nvmlDeviceGetGpuInstanceId)
        compute_instance = gpu.query_part(handle, "mig_ids", pynvml.nvmlDeviceGetComputeInstanceId)
        if uuid is not None and gpu_instance is not None and compute_instance is not None:
            yield _Instance(handle, uuid, gpu_instance, compute_instance)


def _identity_and_memory(gpu: Device, mig: _Instance) -> Iterable[Sample]:
    name = gpu.query_part(mig.handle, "mig_name", pynvml.nvmlDeviceGetName)
    attributes = gpu.query_part(mig.handle, "mig_attributes", pynvml.nvmlDeviceGetAttributes_v2)
    yield gpu.sample(
        _INFO, 1.0, mig.uuid, profile(name, attributes), str(mig.gpu_instance), str(mig.compute_instance)
    )
    memory = gpu.query_part(mig.handle, "mig_memory", pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
    if memory is not None:
        yield from gpu.value(_TOTAL, "mig_memory", memory.total, MEMORY_BYTES, mig.uuid)
        yield from gpu.value(_USED, "mig_memory", memory.used, MEMORY_BYTES, mig.uuid)
