"""What holds the clocks down: now, and for how long so far.

Times overlap: `thermal` and `sw_power_cap` are the older policies, which contain part of the newer
reasons. They must not be added up.
"""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device, FieldKey
from rankwatch_agent.sources.gpu.reading.limits import NANOSECONDS

_SECONDS = metric("rankwatch_gpu_throttle_seconds_total").name
_ACTIVE = metric("rankwatch_gpu_throttle_active").name

_TIMES: dict[FieldKey, str] = {
    # NVML calls 74 and 76 also CLOCKS_EVENT_REASON_SW_POWER_CAP and _SYNC_BOOST: one vocabulary for both
    (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, 0): "sw_power_cap",
    (pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, 0): "thermal",
    (pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, 0): "sync_boost",
    (pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, 0): "board_limit",
    (pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, 0): "low_utilization",
    (pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY, 0): "reliability",
}
_NEWER_TIMES: dict[FieldKey, str] = {
    (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 0): "sw_thermal_slowdown",
    (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 0): "hw_thermal_slowdown",
    (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 0): "hw_power_brake_slowdown",
}
NEWER_FIELDS_SINCE_DRIVER = 580
"""Drivers of the 570 series number these three 251-253 and give 269-271 to power smoothing."""

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
_NOT_A_MASK = 1 << 32
"""A mask with this bit or a higher one is a sentinel, not a set of reasons."""

FIELDS = dict.fromkeys(_TIMES, "throttle_time")
NEWER_FIELDS = dict.fromkeys(_NEWER_TIMES, "throttle_time_by_slowdown")


def read(gpu: Device) -> Iterable[Sample]:
    """Seconds by reason, and 0 or 1 for every reason that the GPU knows."""
    for key, reason in _TIMES.items():
        yield from gpu.field(_SECONDS, "throttle_time", key, NANOSECONDS, reason)
    for key, reason in _NEWER_TIMES.items():
        yield from gpu.field(_SECONDS, "throttle_time_by_slowdown", key, NANOSECONDS, reason)
    yield from _active(gpu)


def _active(gpu: Device) -> Iterable[Sample]:
    known = gpu.ask_any(
        "throttle_reasons_supported",
        (pynvml.nvmlDeviceGetSupportedClocksEventReasons,),
        (pynvml.nvmlDeviceGetSupportedClocksThrottleReasons,),  # its name in older drivers
    )
    now = gpu.ask_any(
        "throttle_reasons",
        (pynvml.nvmlDeviceGetCurrentClocksEventReasons,),
        (pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,),
    )
    if now is None:
        return
    if now >= _NOT_A_MASK or now == _NOT_A_MASK - 1:
        gpu.reject("throttle_reasons")
        return
    for bit, reason in _REASONS:
        if now & bit or (known is not None and known & bit):
            yield gpu.sample(_ACTIVE, 1.0 if now & bit else 0.0, reason)
