"""Power, its limit, and energy."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import MILLIJOULES, MILLIWATTS

_QUESTIONS = (
    (metric("rankwatch_gpu_power_watts").name, "power", pynvml.nvmlDeviceGetPowerUsage, MILLIWATTS),
    (
        metric("rankwatch_gpu_power_limit_watts").name,
        "power_limit",
        pynvml.nvmlDeviceGetEnforcedPowerLimit,
        MILLIWATTS,
    ),
    (
        metric("rankwatch_gpu_energy_joules_total").name,
        "energy",
        pynvml.nvmlDeviceGetTotalEnergyConsumption,
        MILLIJOULES,
    ),
)


def read(gpu: Device) -> Iterable[Sample]:
    """Watts and joules."""
    for name, feature, function, unit in _QUESTIONS:
        yield from gpu.checked(name, feature, gpu.ask(feature, function), unit)
