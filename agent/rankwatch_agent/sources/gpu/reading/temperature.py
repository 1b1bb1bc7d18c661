"""Temperatures, and how far they are from a slowdown."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import CELSIUS

_TEMPERATURE = metric("rankwatch_gpu_temperature_celsius").name
_MARGIN = metric("rankwatch_gpu_temperature_margin_celsius").name
_MEMORY = (pynvml.NVML_FI_DEV_MEMORY_TEMP, 0)

FIELDS = {_MEMORY: "memory_temperature"}


def read(gpu: Device) -> Iterable[Sample]:
    """Core, memory, margin."""
    core = gpu.ask_any(
        "temperature",
        (pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU),
        (pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),  # older drivers
    )
    yield from gpu.checked(_TEMPERATURE, "temperature", core, CELSIUS, "core")
    yield from gpu.field(_TEMPERATURE, "memory_temperature", _MEMORY, CELSIUS, "memory")
    margin = gpu.ask("temperature_margin", pynvml.nvmlDeviceGetMarginTemperature)
    yield from gpu.checked(_MARGIN, "temperature_margin", margin, CELSIUS)
