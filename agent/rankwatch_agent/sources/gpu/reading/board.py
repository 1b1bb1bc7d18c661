"""The board of a GPU: firmware, settings and limits, which hardly ever change, and P-state, fans and BAR1."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions.metrics import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device, FieldKey
from rankwatch_agent.sources.gpu.reading.units import (
    CELSIUS,
    FAN_PERCENT,
    FLAG,
    MEMORY_BYTES,
    MILLIWATTS,
    PERFORMANCE_STATE,
)

_FIRMWARE = metric("rankwatch_gpu_firmware_info").name
_PERSISTENCE = metric("rankwatch_gpu_persistence_mode").name
_POWER_THRESHOLD = metric("rankwatch_gpu_power_threshold_watts").name
_TEMPERATURE_THRESHOLD = metric("rankwatch_gpu_temperature_threshold_celsius").name
_MARGIN_THRESHOLD = metric("rankwatch_gpu_temperature_margin_threshold_celsius").name
_PERFORMANCE_STATE = metric("rankwatch_gpu_performance_state").name
_FAN_SPEED = metric("rankwatch_gpu_fan_speed_ratio").name
_BAR1_TOTAL = metric("rankwatch_gpu_bar1_total_bytes").name
_BAR1_USED = metric("rankwatch_gpu_bar1_used_bytes").name

MAX_FANS = 16
"""Fans read of one GPU."""

_TEMPERATURE_THRESHOLDS = (
    (pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN, "shutdown"),
    (pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, "slowdown"),
    (pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX, "memory_max"),
    (pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX, "gpu_max"),
)
_MARGINS: dict[FieldKey, str] = {
    (pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, 0): "shutdown",
    (pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, 0): "slowdown",
    (pynvml.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, 0): "memory_max",
    (pynvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, 0): "gpu_max",
}
_MARGIN_FEATURE = "temperature_margin_thresholds"
_UNKNOWN_STATE = 32
"""NVML_PSTATE_UNKNOWN."""

FIELDS: dict[FieldKey, str] = dict.fromkeys(_MARGINS, _MARGIN_FEATURE)


def read_settings(gpu: Device) -> Iterable[Sample]:
    """What hardly ever changes: versions of the firmware, persistence mode, power and temperature limits."""
    vbios = gpu.query("vbios_version", pynvml.nvmlDeviceGetVbiosVersion)
    inforom = gpu.query("inforom_version", pynvml.nvmlDeviceGetInforomImageVersion)
    if vbios or inforom:
        yield gpu.sample(_FIRMWARE, 1.0, vbios or "", inforom or "")
    mode = gpu.query("persistence_mode", pynvml.nvmlDeviceGetPersistenceMode)
    yield from gpu.value(_PERSISTENCE, "persistence_mode", mode, FLAG)
    yield from _power_thresholds(gpu)
    for threshold, name in _TEMPERATURE_THRESHOLDS:
        feature = f"temperature_threshold_{name}"
        celsius = gpu.query(feature, pynvml.nvmlDeviceGetTemperatureThreshold, threshold)
        yield from gpu.value(_TEMPERATURE_THRESHOLD, feature, celsius, CELSIUS, name)


def _power_thresholds(gpu: Device) -> Iterable[Sample]:
    lowest, highest = gpu.query("power_bounds", pynvml.nvmlDeviceGetPowerManagementLimitConstraints) or (
        None,
        None,
    )
    default = gpu.query("power_default", pynvml.nvmlDeviceGetPowerManagementDefaultLimit)
    requested = gpu.query("power_requested", pynvml.nvmlDeviceGetPowerManagementLimit)
    yield from gpu.value(_POWER_THRESHOLD, "power_bounds", lowest, MILLIWATTS, "min")
    yield from gpu.value(_POWER_THRESHOLD, "power_bounds", highest, MILLIWATTS, "max")
    yield from gpu.value(_POWER_THRESHOLD, "power_default", default, MILLIWATTS, "default")
    yield from gpu.value(_POWER_THRESHOLD, "power_requested", requested, MILLIWATTS, "requested")


def read_state(gpu: Device) -> Iterable[Sample]:
    """P-state, fans, BAR1, and the thresholds that are given as a distance to the slowdown."""
    state = gpu.query("performance_state", pynvml.nvmlDeviceGetPerformanceState)
    if state != _UNKNOWN_STATE:
        yield from gpu.value(_PERFORMANCE_STATE, "performance_state", state, PERFORMANCE_STATE)
    bar1 = gpu.query("bar1", pynvml.nvmlDeviceGetBAR1MemoryInfo)
    if bar1 is not None:
        yield from gpu.value(_BAR1_TOTAL, "bar1", bar1.bar1Total, MEMORY_BYTES)
        yield from gpu.value(_BAR1_USED, "bar1", bar1.bar1Used, MEMORY_BYTES)
    for key, name in _MARGINS.items():
        raw = gpu.fields.get(key)
        margin = None if raw is None else _signed(raw)
        yield from gpu.value(_MARGIN_THRESHOLD, _MARGIN_FEATURE, margin, CELSIUS, name)
    yield from _fans(gpu)


def _fans(gpu: Device) -> Iterable[Sample]:
    fans = gpu.query("fans", pynvml.nvmlDeviceGetNumFans)
    if fans == 0:
        gpu.features.set_unsupported("fans")  # the server cools it: do not ask in every reading
    for fan in range(min(fans or 0, MAX_FANS)):
        speed = gpu.query("fan_speed", pynvml.nvmlDeviceGetFanSpeed_v2, fan)
        yield from gpu.value(_FAN_SPEED, "fan_speed", speed, FAN_PERCENT, str(fan))


def _signed(raw: float) -> float:
    """A negative number of 32 bits that a driver gave as an unsigned one."""
    return raw - (1 << 32) if 1 << 31 <= raw < (1 << 32) - 1 else raw
