"""How busy a GPU says it is."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import PERCENT

_UTILIZATION = metric("rankwatch_gpu_utilization_ratio").name
_MEMORY_CONTROLLER = metric("rankwatch_gpu_memory_controller_utilization_ratio").name


def read(gpu: Device) -> Iterable[Sample]:
    """Utilisation of the GPU and of its memory controller; a GPU cut into MIG instances has none."""
    if gpu.mig_enabled:
        return
    rates = gpu.ask("utilization", pynvml.nvmlDeviceGetUtilizationRates)
    if rates is None:
        return
    gpu.utilization = gpu.accept("utilization", rates.gpu, PERCENT)
    if gpu.utilization is not None:
        yield gpu.sample(_UTILIZATION, gpu.utilization)
    yield from gpu.checked(_MEMORY_CONTROLLER, "utilization", rates.memory, PERCENT)
