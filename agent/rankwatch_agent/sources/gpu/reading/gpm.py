"""GPU performance monitoring (GPM, Hopper and newer): what was active between two collections.

GPM does not use the performance counters of a profiler, so both work side by side. A value is computed
from two samples at least 100 ms apart: the one of the last collection is kept and swapped, nothing
sleeps. GPUs are asked strictly one after the other: calls side by side have crashed (leptonai/gpud).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading import pcie
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.features import UNSUPPORTED, describe
from rankwatch_agent.sources.gpu.reading.limits import GPM_PERCENT, MEBIBYTES_PER_SECOND

_ACTIVITY = metric("rankwatch_gpu_activity_ratio").name
_UNITS = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: "graphics",
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm",
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: "sm_occupancy",
    pynvml.NVML_GPM_METRIC_INTEGER_UTIL: "integer",
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram",
    pynvml.NVML_GPM_METRIC_FP64_UTIL: "fp64",
    pynvml.NVML_GPM_METRIC_FP32_UTIL: "fp32",
    pynvml.NVML_GPM_METRIC_FP16_UTIL: "fp16",
}
_PCIE = {
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "transmit",
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "receive",
}
_IDS = (*_UNITS, *_PCIE)
_FEATURE = "gpm"
LEAST_SECONDS_APART = 0.1
_METRICS = struct.Struct("@" + "IIdPPP" * len(_IDS))
"""The first entries of nvmlGpmMetricsGet_t.metrics: id, error, value, three names."""


@dataclass
class _Pair:
    """Two samples of one GPU or MIG instance, used in turn."""

    previous: Any
    spare: Any
    taken_at: float | None = None
    """When `previous` was taken; None before the first one."""


class Gpm:
    """The samples of all GPUs; they belong to the driver and are given back by `release`."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pairs: dict[tuple[str, int | None], _Pair] = {}
        self._supported: dict[str, bool] = {}
        self._request = pynvml.c_nvmlGpmMetricsGet_t()  # 19 kB, so one for all
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_IDS)
        for at, number in enumerate(_IDS):
            self._request.metrics[at].metricId = number

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Activity and PCIe throughput since the last collection; nothing at the first one."""
        if gpu.mig_enabled:
            return
        if not self._supports(gpu):
            yield from pcie.read_throughput(gpu)
            return
        values = self._measure(gpu, None)
        gpu.activity = activity(gpu, values)
        for unit, share in gpu.activity.items():
            yield gpu.sample(_ACTIVITY, share, unit)
        for number, direction in _PCIE.items():
            yield from gpu.checked(
                pcie.THROUGHPUT, _FEATURE, values.get(number), MEBIBYTES_PER_SECOND, direction
            )

    def instance_activity(self, gpu: Device, instance: int) -> dict[str, float]:
        """Activity of a GPU instance of MIG since the last collection, by unit."""
        return activity(gpu, self._measure(gpu, instance)) if self._supports(gpu) else {}

    def forget(self, uuid: str) -> None:
        """A GPU is lost: what it counted before is no start for what comes after."""
        for (owner, _), pair in self._pairs.items():
            if owner == uuid:
                pair.taken_at = None

    def release(self) -> None:
        """Give all samples back to the driver, before it is shut down."""
        for pair in self._pairs.values():
            for sample in (pair.previous, pair.spare):
                try:
                    pynvml.nvmlGpmSampleFree(sample)
                except pynvml.NVMLError:
                    continue  # it goes with the driver then
        self._pairs.clear()
        self._supported.clear()

    def _supports(self, gpu: Device) -> bool:
        if not gpu.features.wanted(_FEATURE):
            return False
        if gpu.uuid not in self._supported or gpu.ask_all:
            told = gpu.ask(_FEATURE, pynvml.nvmlGpmQueryDeviceSupport)
            if told is None:
                return False
            self._supported[gpu.uuid] = bool(told.isSupportedDevice)
        if not self._supported[gpu.uuid]:
            gpu.features.refused(_FEATURE)
        return self._supported[gpu.uuid]

    def _measure(self, gpu: Device, instance: int | None) -> dict[int, float]:
        """Values between the kept sample and a new one, which is kept then."""
        pair = self._pair(gpu, instance)
        if pair is None:
            return {}
        now, before = self._monotonic(), pair.taken_at
        if before is not None and now - before <= LEAST_SECONDS_APART:
            return {}
        if instance is None:
            taken = gpu.ask(_FEATURE, pynvml.nvmlGpmSampleGet, pair.spare)
        else:
            taken = gpu.ask(_FEATURE, pynvml.nvmlGpmMigSampleGet, instance, pair.spare)
        if taken is None:
            return {}
        # Asked for anew: a pause since `now` would make the next sample look farther apart than it is.
        pair.previous, pair.spare, pair.taken_at = pair.spare, pair.previous, self._monotonic()
        return {} if before is None else self._between(gpu, pair.spare, pair.previous)

    def _pair(self, gpu: Device, instance: int | None) -> _Pair | None:
        pair = self._pairs.get((gpu.uuid, instance))
        if pair is None:
            try:
                pair = _Pair(pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc())
            except pynvml.NVMLError as error:
                gpu.failed(_FEATURE, error.value)
                return None
            self._pairs[gpu.uuid, instance] = pair
        return pair

    def _between(self, gpu: Device, older: object, newer: object) -> dict[int, float]:
        self._request.sample1, self._request.sample2 = older, newer
        if gpu.ask_about(self._request, _FEATURE, pynvml.nvmlGpmMetricsGet) is None:
            return {}
        told = _METRICS.unpack_from(self._request, type(self._request).metrics.offset)
        values: dict[int, float] = {}
        errors: set[int] = set()
        for number, error, value in zip(told[0::6], told[1::6], told[2::6], strict=True):
            if error == pynvml.NVML_SUCCESS:
                values[number] = value
            elif error not in UNSUPPORTED:
                errors.add(error)
        for error in sorted(errors):
            gpu.warn(f"could not read some GPM metrics: {describe(error)}")
        return values


def activity(gpu: Device, values: dict[int, float]) -> dict[str, float]:
    """Shares of 0 to 1 by unit, from GPM's percents by number."""
    found = {}
    for number, unit in _UNITS.items():
        raw = values.get(number)
        share = None if raw is None else gpu.accept(_FEATURE, raw, GPM_PERCENT)
        if share is not None:
            found[unit] = min(share, 1.0)
    return found
