"""Device memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import MEMORY_BYTES

_TOTAL = metric("rankwatch_gpu_memory_total_bytes").name
_USED = metric("rankwatch_gpu_memory_used_bytes").name
_FREE = metric("rankwatch_gpu_memory_free_bytes").name
_RESERVED = metric("rankwatch_gpu_memory_reserved_bytes").name


def read(gpu: Device) -> Iterable[Sample]:
    """Total, used, free, reserved.

    An old driver counts what it reserves as used: there only total and free are known.
    """
    told = gpu.ask_any(
        "memory",
        (pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2),
        (nvml_memory_info_v1,),
    )
    if told is None:
        return
    yield from gpu.checked(_TOTAL, "memory", told.total, MEMORY_BYTES)
    yield from gpu.checked(_FREE, "memory", told.free, MEMORY_BYTES)
    if isinstance(told, pynvml.c_nvmlMemory_v2_t):
        yield from gpu.checked(_USED, "memory", told.used, MEMORY_BYTES)
        yield from gpu.checked(_RESERVED, "memory", told.reserved, MEMORY_BYTES)


def nvml_memory_info_v1(handle: object) -> Any:
    """nvmlDeviceGetMemoryInfo without a version, under a name of its own."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle)
