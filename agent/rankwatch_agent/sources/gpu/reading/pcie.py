"""The PCIe link: speed, width, packets sent again; throughput where GPM does not tell it."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import (
    EVENTS,
    KILOBYTES_PER_SECOND,
    PCIE_GENERATION,
    PCIE_LANES,
)

THROUGHPUT = metric("rankwatch_gpu_pcie_throughput_bytes").name
_REPLAYS = metric("rankwatch_gpu_pcie_replays_total").name
_REPLAY_FIELD = (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 0)
_LINK = (
    (
        metric("rankwatch_gpu_pcie_generation").name,
        "pcie_generation",
        pynvml.nvmlDeviceGetCurrPcieLinkGeneration,
        PCIE_GENERATION,
    ),
    (
        metric("rankwatch_gpu_pcie_generation_max").name,
        "pcie_generation_max",
        pynvml.nvmlDeviceGetMaxPcieLinkGeneration,
        PCIE_GENERATION,
    ),
    (
        metric("rankwatch_gpu_pcie_width").name,
        "pcie_width",
        pynvml.nvmlDeviceGetCurrPcieLinkWidth,
        PCIE_LANES,
    ),
    (
        metric("rankwatch_gpu_pcie_width_max").name,
        "pcie_width_max",
        pynvml.nvmlDeviceGetMaxPcieLinkWidth,
        PCIE_LANES,
    ),
)
_DIRECTIONS = ((pynvml.NVML_PCIE_UTIL_TX_BYTES, "transmit"), (pynvml.NVML_PCIE_UTIL_RX_BYTES, "receive"))

FIELDS = {_REPLAY_FIELD: "pcie_replays"}


def read(gpu: Device) -> Iterable[Sample]:
    """Generation, lanes, replays."""
    for name, feature, function, unit in _LINK:
        yield from gpu.checked(name, feature, gpu.ask(feature, function), unit)
    yield from gpu.field(_REPLAYS, "pcie_replays", _REPLAY_FIELD, EVENTS)


def read_throughput(gpu: Device) -> Iterable[Sample]:
    """Bytes per second over the last 20 ms.

    Each direction keeps the driver busy for 20 ms, so this is only for GPUs without GPM.
    """
    for counter, direction in _DIRECTIONS:
        raw = gpu.ask("pcie_throughput", pynvml.nvmlDeviceGetPcieThroughput, counter)
        yield from gpu.checked(THROUGHPUT, "pcie_throughput", raw, KILOBYTES_PER_SECOND, direction)
