"""The NVLink fabric of an NVSwitch system: whether the GPU joined it, and what it complains of."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device

_STATE = metric("rankwatch_gpu_fabric_state").name
_DEGRADED = metric("rankwatch_gpu_fabric_degraded").name
_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not_started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}
_FAILED = "failed"


class _Part(NamedTuple):
    """Some bits of the health mask (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_...)."""

    reason: str
    shift: int
    width: int
    well: int
    """Value that denies the complaint; 0 says nothing, every other value complains."""


_MASK = (
    _Part("degraded_bandwidth", 0, 0x3, 2),
    _Part("route_recovery", 2, 0x3, 2),
    _Part("route_unhealthy", 4, 0x3, 2),
    _Part("access_timeout_recovery", 6, 0x3, 2),
    _Part("incorrect_configuration", 8, 0xF, 1),
    _Part("no_partition", 12, 0x3, 1),
    _Part("fabric_manager_disconnected", 14, 0x3, 1),
)
_NO_MASK = 0xFFFFFFFF


def read(gpu: Device) -> Iterable[Sample]:
    """State of the probe and complaints; a GPU without a fabric has neither."""
    info = gpu.ask("fabric", _fabric_info)
    if info is None:
        return
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        gpu.features.refused("fabric")
        return
    state = _STATES.get(info.state)
    if state is None:
        gpu.reject("fabric")
        return
    if state == "completed" and info.status != pynvml.NVML_SUCCESS:
        state = _FAILED  # the probe is over, and this is what it found
    yield gpu.sample(_STATE, 1.0, state)
    for reason, complains in complaints(info.healthMask):
        yield gpu.sample(_DEGRADED, float(complains), reason)


def complaints(mask: int) -> Iterable[tuple[str, bool]]:
    """Each reason that a health mask speaks of, and whether it complains."""
    if mask == _NO_MASK:
        return
    for part in _MASK:
        value = mask >> part.shift & part.width
        if value:
            yield part.reason, value != part.well


def _fabric_info(handle: object) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info
