"""The board of a GPU: firmware, P-state, fans, power, temperature, clocks, and what holds the clocks down."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import (
    CELSIUS,
    FAN_PERCENT,
    MEGAHERTZ,
    MILLIJOULES,
    MILLIWATTS,
    NANOSECONDS,
    PERFORMANCE_STATE,
    Device,
    FieldKey,
)

MAX_FANS = 16
"""Fans read of one GPU."""
_UNKNOWN_STATE = 32
"""NVML_PSTATE_UNKNOWN."""


def read_firmware(gpu: Device) -> Iterable[Sample]:
    """Yield the versions of the firmware, which hardly ever change."""
    vbios = gpu.query("vbios_version", pynvml.nvmlDeviceGetVbiosVersion)
    inforom = gpu.query("inforom_version", pynvml.nvmlDeviceGetInforomImageVersion)
    if vbios or inforom:
        yield gpu.sample("rankwatch_gpu_firmware_info", 1.0, vbios or "", inforom or "")


def read_state(gpu: Device) -> Iterable[Sample]:
    """Yield P-state and fans."""
    state = gpu.query("performance_state", pynvml.nvmlDeviceGetPerformanceState)
    if state != _UNKNOWN_STATE:
        yield from gpu.value("rankwatch_gpu_performance_state", "performance_state", state, PERFORMANCE_STATE)
    yield from _fans(gpu)


def _fans(gpu: Device) -> Iterable[Sample]:
    fans = gpu.query("fans", pynvml.nvmlDeviceGetNumFans)
    if fans == 0:
        gpu.features.set_unsupported("fans")  # the server cools it: do not ask in every reading
    for fan in range(min(fans or 0, MAX_FANS)):
        speed = gpu.query("fan_speed", pynvml.nvmlDeviceGetFanSpeed_v2, fan)
        yield from gpu.value("rankwatch_gpu_fan_speed_ratio", "fan_speed", speed, FAN_PERCENT, str(fan))


_TEMPERATURE = "rankwatch_gpu_temperature_celsius"
_THROTTLE_SECONDS = "rankwatch_gpu_throttle_seconds_total"

_CLOCKS = tuple(
    (kind, clock, f"{clock}_clock", f"{clock}_clock_max")
    for kind, clock in (
        (pynvml.NVML_CLOCK_GRAPHICS, "graphics"),
        (pynvml.NVML_CLOCK_SM, "sm"),
        (pynvml.NVML_CLOCK_MEM, "memory"),
        (pynvml.NVML_CLOCK_VIDEO, "video"),
    )
)
_MEMORY_TEMPERATURE = (pynvml.NVML_FI_DEV_MEMORY_TEMP, 0)

_TIMES: dict[FieldKey, str] = {
    # NVML also calls 74 and 76 CLOCKS_EVENT_REASON_SW_POWER_CAP and _SYNC_BOOST: one vocabulary for both
    (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, 0): "sw_power_cap",
    (pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, 0): "thermal",
    (pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, 0): "sync_boost",
    (pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, 0): "board_limit",
    (pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, 0): "low_utilization",
    (pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY, 0): "reliability",
}
_SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_SLOWDOWN_FIELD = 269
_SLOWDOWN_FIELD_SINCE = (580, 82)
_EARLY_SLOWDOWN_FIELD = 251
_EARLY_SLOWDOWN_VERSIONS = (((575, 51), (575, 57)), ((580, 65), (580, 65)))
"""First and last version whose nvml.h gives the three slowdowns the numbers 251 to 253."""
_REASONS = (
    (pynvml.nvmlClocksEventReasonGpuIdle, "gpu_idle"),
    (pynvml.nvmlClocksEventReasonApplicationsClocksSetting, "applications_clocks_setting"),
    (pynvml.nvmlClocksEventReasonSwPowerCap, "sw_power_cap"),
    (pynvml.nvmlClocksEventReasonHwSlowdown, "hw_slowdown"),
    (pynvml.nvmlClocksEventReasonSyncBoost, "sync_boost"),
    (pynvml.nvmlClocksEventReasonSwThermalSlowdown, "sw_thermal_slowdown"),
    (pynvml.nvmlClocksEventReasonHwThermalSlowdown, "hw_thermal_slowdown"),
    (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hw_power_brake_slowdown"),
    (pynvml.nvmlClocksEventReasonDisplayClockSetting, "display_clock_setting"),
    (pynvml.nvmlClocksThrottleReasonBoardLimit, "board_limit"),
    (pynvml.nvmlClocksThrottleReasonReliability, "reliability"),
)
_NO_MASK = 0xFFFFFFFF
"""This number and every larger one is a sentinel, not a set of reasons."""

FIELDS: dict[FieldKey, str] = {
    **dict.fromkeys(_TIMES, "throttle_time"),
    _MEMORY_TEMPERATURE: "memory_temperature",
}


def slowdown_fields(version: tuple[int, ...]) -> dict[FieldKey, str]:
    """Return field -> reason of the three slowdowns on this driver; empty where no header of NVIDIA tells.

    NVIDIA moved them: the nvml.h of 575.51, 575.57 and 580.65 (CUDA 12.9 and 13.0) numbers them 251 to 253
    and power smoothing 256 to 273. The one of 570 (CUDA 12.8) numbers power smoothing 251 to 268 and has no
    slowdowns. From 580.82 (CUDA 13.0 Update 1) on, power smoothing has its old numbers again and the
    slowdowns are 269 to 271. To read the wrong ones gives settings of power smoothing as nanoseconds.
    """
    release = version[:2]
    if release >= _SLOWDOWN_FIELD_SINCE:
        first = _SLOWDOWN_FIELD
    elif any(low <= release <= high for low, high in _EARLY_SLOWDOWN_VERSIONS):
        first = _EARLY_SLOWDOWN_FIELD
    else:
        return {}
    return {(first + at, 0): reason for at, reason in enumerate(_SLOWDOWNS)}


def read_power(gpu: Device) -> Iterable[Sample]:
    """Yield watts and joules."""
    watts = gpu.query("power", pynvml.nvmlDeviceGetPowerUsage)
    limit = gpu.query("power_limit", pynvml.nvmlDeviceGetEnforcedPowerLimit)
    energy = gpu.query("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption)
    yield from gpu.value("rankwatch_gpu_power_watts", "power", watts, MILLIWATTS)
    yield from gpu.value("rankwatch_gpu_power_limit_watts", "power_limit", limit, MILLIWATTS)
    yield from gpu.value("rankwatch_gpu_energy_joules_total", "energy", energy, MILLIJOULES)


def read_temperature(gpu: Device) -> Iterable[Sample]:
    """Yield the temperatures of core and memory, and the distance to a slowdown."""
    core = gpu.query_first(
        "temperature",
        (pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU),
        (pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),  # older drivers
    )
    yield from gpu.value(_TEMPERATURE, "temperature", core, CELSIUS, "core")
    yield from gpu.field(_TEMPERATURE, "memory_temperature", _MEMORY_TEMPERATURE, CELSIUS, "memory")
    margin = gpu.query("temperature_margin", pynvml.nvmlDeviceGetMarginTemperature)
    yield from gpu.value("rankwatch_gpu_temperature_margin_celsius", "temperature_margin", margin, CELSIUS)


def read_clocks(gpu: Device) -> Iterable[Sample]:
    """Present and highest clocks; a GPU may lack one of the four."""
    for kind, clock, feature, feature_max in _CLOCKS:
        now = gpu.query(feature, pynvml.nvmlDeviceGetClockInfo, kind)
        yield from gpu.value("rankwatch_gpu_clock_hertz", feature, now, MEGAHERTZ, clock)
        highest = gpu.query(feature_max, pynvml.nvmlDeviceGetMaxClockInfo, kind)
        yield from gpu.value("rankwatch_gpu_clock_max_hertz", feature_max, highest, MEGAHERTZ, clock)


def read_throttling(gpu: Device) -> Iterable[Sample]:
    """Yield seconds by reason, and 0 or 1 for every reason that the GPU knows.

    The seconds overlap: `thermal` and `sw_power_cap` are older policies that contain part of the newer
    reasons. They must not be added up.
    """
    for key, reason in _TIMES.items():
        yield from gpu.field(_THROTTLE_SECONDS, "throttle_time", key, NANOSECONDS, reason)
    for key, reason in slowdown_fields(gpu.driver_version).items():
        yield from gpu.field(_THROTTLE_SECONDS, "throttle_time_by_slowdown", key, NANOSECONDS, reason)
    yield from _active_reasons(gpu)


def _active_reasons(gpu: Device) -> Iterable[Sample]:
    known = gpu.query_first(
        "throttle_reasons_supported",
        (pynvml.nvmlDeviceGetSupportedClocksEventReasons,),
        (pynvml.nvmlDeviceGetSupportedClocksThrottleReasons,),  # its name in older drivers
    )
    now = gpu.query_first(
        "throttle_reasons",
        (pynvml.nvmlDeviceGetCurrentClocksEventReasons,),
        (pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,),
    )
    if now is None:
        return
    if now >= _NO_MASK:
        gpu.reject("throttle_reasons")
        return
    for bit, reason in _REASONS:
        if now & bit or (known is not None and known & bit):
            yield gpu.sample("rankwatch_gpu_throttle_active", 1.0 if now & bit else 0.0, reason)
