"""Clocks now and at most."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import MEGAHERTZ

_CLOCK = metric("rankwatch_gpu_clock_hertz").name
_MAX = metric("rankwatch_gpu_clock_max_hertz").name
_CLOCKS = (
    (pynvml.NVML_CLOCK_GRAPHICS, "graphics"),
    (pynvml.NVML_CLOCK_SM, "sm"),
    (pynvml.NVML_CLOCK_MEM, "memory"),
    (pynvml.NVML_CLOCK_VIDEO, "video"),
)
_FEATURES = tuple((kind, clock, f"{clock}_clock", f"{clock}_clock_max") for kind, clock in _CLOCKS)


def read(gpu: Device) -> Iterable[Sample]:
    """Four clocks; a GPU may lack one of them."""
    for kind, clock, feature, feature_max in _FEATURES:
        now = gpu.ask(feature, pynvml.nvmlDeviceGetClockInfo, kind)
        yield from gpu.checked(_CLOCK, feature, now, MEGAHERTZ, clock)
        most = gpu.ask(feature_max, pynvml.nvmlDeviceGetMaxClockInfo, kind)
        yield from gpu.checked(_MAX, feature_max, most, MEGAHERTZ, clock)
