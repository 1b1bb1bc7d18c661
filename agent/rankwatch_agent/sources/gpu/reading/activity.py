"""How busy a GPU, or a MIG instance of it, is: utilisation, activity of its units by GPM, PCIe throughput.

GPM (GPU performance monitoring, Hopper and newer) does not use the performance counters of a profiler, so
both work side by side. A value comes from two samples at least 100 ms apart. The sample of the last reading
is kept for the next one, so nothing sleeps. GPUs are queried strictly one after the other, because parallel
calls have crashed (leptonai/gpud).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pynvml

from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import (
    GPM_PERCENT,
    KILOBYTES_PER_SECOND,
    MEBIBYTES_PER_SECOND,
    MEMORY_BYTES,
    PERCENT,
    UNSUPPORTED,
    Device,
    describe,
)

_PCIE_THROUGHPUT = "rankwatch_gpu_pcie_throughput_bytes"

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
_GPM_PCIE = {
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "transmit",
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "receive",
}
_PCIE_COUNTERS = (
    (pynvml.NVML_PCIE_UTIL_TX_BYTES, "transmit"),
    (pynvml.NVML_PCIE_UTIL_RX_BYTES, "receive"),
)
_VIDEO_UNITS = (
    ("encoder", pynvml.nvmlDeviceGetEncoderUtilization),
    ("decoder", pynvml.nvmlDeviceGetDecoderUtilization),
)
_SUSPECT_UNITS = ("sm", "tensor", "dram")
_SUSPECT_READINGS = 2
"""A single reading may catch a kernel that has only begun."""

_FEATURE = "gpm"
_IDS = (*_UNITS, *_GPM_PCIE)
_METRICS = struct.Struct("@" + "IIdPPP" * len(_IDS))
"""The first entries of nvmlGpmMetricsGet_t.metrics: id, error, value, three names."""
MIN_SECONDS_APART = 0.1


class Activity:
    """Reads how busy one GPU is."""

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm
        self._suspect_readings = 0

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Yield utilisation, activity and throughput; none exists for a GPU cut into MIG instances."""
        if gpu.mig_enabled:
            return
        utilization = None
        rates = gpu.query("utilization", pynvml.nvmlDeviceGetUtilizationRates)
        if rates is not None:
            utilization = gpu.convert("utilization", rates.gpu, PERCENT)
            if utilization is not None:
                yield gpu.sample("rankwatch_gpu_utilization_ratio", utilization)
        for unit, function in _VIDEO_UNITS:
            share, _ = gpu.query(unit, function) or (None, None)
            yield from gpu.value("rankwatch_gpu_video_utilization_ratio", unit, share, PERCENT, unit)
        if not self._gpm.supports(gpu):
            yield from _pcie_throughput(gpu)
            return
        values = self._gpm.measure(gpu)
        activity = by_unit(gpu, values)
        for unit, share in activity.items():
            yield gpu.sample("rankwatch_gpu_activity_ratio", share, unit)
        for number, direction in _GPM_PCIE.items():
            raw = values.get(number)
            yield from gpu.value(_PCIE_THROUGHPUT, _FEATURE, raw, MEBIBYTES_PER_SECOND, direction)
        yield from self._suspect(gpu, utilization, [activity.get(unit) for unit in _SUSPECT_UNITS])

    def _suspect(
        self, gpu: Device, utilization: float | None, activity: list[float | None]
    ) -> Iterable[Sample]:
        """Yield 1 where the GPU reports full utilisation and no activity at all in several readings in a row.

        Such counters have gone unnoticed for weeks (NVIDIA/dcgm-exporter#662).
        """
        if utilization is None or any(each is None for each in activity):
            return
        contradiction = utilization == 1.0 and all(each == 0.0 for each in activity)
        self._suspect_readings = self._suspect_readings + 1 if contradiction else 0
        yield gpu.sample(
            "rankwatch_gpu_counters_suspect", 1.0 if self._suspect_readings >= _SUSPECT_READINGS else 0.0
        )


@dataclass
class _Pair:
    """Two samples of one GPU or MIG instance, used in turn."""

    previous: Any
    spare: Any
    taken_at: float | None = None
    """Time of `previous`; None before the first sample."""


class Gpm:
    """The GPM samples of all GPUs. They belong to the driver; `release` gives them back."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pairs: dict[tuple[str, int | None], _Pair] = {}
        self._supported: dict[str, bool] = {}
        self._request = pynvml.c_nvmlGpmMetricsGet_t()  # 19 kB, so one for all
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_IDS)
        for at, number in enumerate(_IDS):
            self._request.metrics[at].metricId = number

    def supports(self, gpu: Device) -> bool:
        """Return True if the GPU has GPM."""
        if not gpu.features.wanted(_FEATURE):
            return False
        if gpu.uuid not in self._supported or gpu.query_all:
            support = gpu.query(_FEATURE, pynvml.nvmlGpmQueryDeviceSupport)
            if support is None:
                return False
            self._supported[gpu.uuid] = bool(support.isSupportedDevice)
        if not self._supported[gpu.uuid]:
            gpu.features.set_unsupported(_FEATURE)
        return self._supported[gpu.uuid]

    def measure(self, gpu: Device, instance: int | None = None) -> dict[int, float]:
        """Map the numbers of GPM metrics to values since the last sample; empty without a last one.

        instance: the number of a GPU instance of MIG; None for the GPU itself.
        """
        pair = self._pair(gpu, instance)
        if pair is None:
            return {}
        now, before = self._monotonic(), pair.taken_at
        if before is not None and now - before <= MIN_SECONDS_APART:
            return {}
        if instance is None:
            taken = gpu.query(_FEATURE, pynvml.nvmlGpmSampleGet, pair.spare)
        else:
            taken = gpu.query(_FEATURE, pynvml.nvmlGpmMigSampleGet, instance, pair.spare)
        if taken is None:
            return {}
        # The clock is read again: with `now` a pause here would make the next samples look farther apart.
        pair.previous, pair.spare, pair.taken_at = pair.spare, pair.previous, self._monotonic()
        return {} if before is None else self._between(gpu, pair.spare, pair.previous)

    def forget(self, uuid: str) -> None:
        """Start anew for a GPU that is lost: its old sample says nothing about the time after."""
        for (owner, _), pair in self._pairs.items():
            if owner == uuid:
                pair.taken_at = None

    def release(self) -> None:
        """Give all samples back to the driver before it is shut down."""
        for pair in self._pairs.values():
            for sample in (pair.previous, pair.spare):
                try:
                    pynvml.nvmlGpmSampleFree(sample)
                except pynvml.NVMLError:
                    continue  # the driver's shutdown frees it
        self._pairs.clear()
        self._supported.clear()

    def _pair(self, gpu: Device, instance: int | None) -> _Pair | None:
        pair = self._pairs.get((gpu.uuid, instance))
        if pair is None:
            try:
                pair = _Pair(pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc())
            except pynvml.NVMLError as error:
                gpu.handle_error(_FEATURE, error.value)
                return None
            self._pairs[gpu.uuid, instance] = pair
        return pair

    def _between(self, gpu: Device, older: object, newer: object) -> dict[int, float]:
        self._request.sample1, self._request.sample2 = older, newer
        if gpu.query_part(self._request, _FEATURE, pynvml.nvmlGpmMetricsGet) is None:
            return {}
        entries = _METRICS.unpack_from(self._request, type(self._request).metrics.offset)
        values: dict[int, float] = {}
        errors: set[int] = set()
        for number, error, value in zip(entries[0::6], entries[1::6], entries[2::6], strict=True):
            if error == pynvml.NVML_SUCCESS:
                values[number] = value
            elif error not in UNSUPPORTED:
                errors.add(error)
        for error in sorted(errors):
            gpu.warn(f"could not read some GPM metrics: {describe(error)}")
        return values


def by_unit(gpu: Device, values: dict[int, float]) -> dict[str, float]:
    """Map units to shares of 0 to 1, from what `Gpm.measure` returns."""
    found = {}
    for number, unit in _UNITS.items():
        raw = values.get(number)
        share = None if raw is None else gpu.convert(_FEATURE, raw, GPM_PERCENT)
        if share is not None:
            found[unit] = min(share, 1.0)
    return found


def _pcie_throughput(gpu: Device) -> Iterable[Sample]:
    """Yield bytes per second over 20 ms. Each direction takes 20 ms, so only GPUs without GPM are asked."""
    for counter, direction in _PCIE_COUNTERS:
        raw = gpu.query("pcie_throughput", pynvml.nvmlDeviceGetPcieThroughput, counter)
        yield from gpu.value(_PCIE_THROUGHPUT, "pcie_throughput", raw, KILOBYTES_PER_SECOND, direction)


_MAX_INSTANCES = 16
"""Today a GPU has at most 7."""
_NAME_MARK = " MIG "
_EMPTY = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


class _Instance(NamedTuple):
    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int


def read_mode(gpu: Device) -> None:
    """Set `gpu.mig_enabled`: such a GPU has no utilisation and activity as a whole."""
    mode = gpu.query("mig", pynvml.nvmlDeviceGetMigMode)
    gpu.mig_enabled = mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


class Mig:
    """The MIG instances of one GPU."""

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Yield identity, memory and activity of each instance."""
        if not gpu.mig_enabled:
            return
        instances = list(_instances(gpu))
        gpu.mig_uuids = tuple(each.uuid for each in instances)
        sharers = Counter(each.gpu_instance for each in instances)
        for each in instances:
            yield from _identity_and_memory(gpu, each)
            # where compute instances share a GPU instance, what GPM measures belongs to none of them
            if sharers[each.gpu_instance] == 1 and self._gpm.supports(gpu):
                for unit, share in by_unit(gpu, self._gpm.measure(gpu, each.gpu_instance)).items():
                    yield gpu.sample("rankwatch_gpu_mig_activity_ratio", share, each.uuid, unit)


def profile(name: str | None, attributes: Any) -> str:
    """Return an instance's profile: from its name ("... MIG 1g.10gb"), else from its slices and memory."""
    if name is not None and _NAME_MARK in name:
        return name.rpartition(_NAME_MARK)[2]
    if attributes is None:
        return ""
    compute, slices = attributes.computeInstanceSliceCount, attributes.gpuInstanceSliceCount
    part = f"{compute}c." if compute != slices else ""
    return f"{part}{slices}g.{-(-attributes.memorySizeMB // 1024)}gb"


def _instances(gpu: Device) -> Iterator[_Instance]:
    count = gpu.query("mig_instances", pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0
    for index in range(min(count, _MAX_INSTANCES)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
        except pynvml.NVMLError as error:
            if error.value not in _EMPTY:
                gpu.handle_error("mig_instances", error.value)
            continue
        uuid = gpu.query_part(handle, "mig_uuid", pynvml.nvmlDeviceGetUUID)
        gpu_instance = gpu.query_part(handle, "mig_ids", pynvml.nvmlDeviceGetGpuInstanceId)
        compute_instance = gpu.query_part(handle, "mig_ids", pynvml.nvmlDeviceGetComputeInstanceId)
        if uuid is not None and gpu_instance is not None and compute_instance is not None:
            yield _Instance(handle, uuid, gpu_instance, compute_instance)


def _identity_and_memory(gpu: Device, mig: _Instance) -> Iterable[Sample]:
    name = gpu.query_part(mig.handle, "mig_name", pynvml.nvmlDeviceGetName)
    attributes = gpu.query_part(mig.handle, "mig_attributes", pynvml.nvmlDeviceGetAttributes_v2)
    yield gpu.sample(
        "rankwatch_gpu_mig_info",
        1.0,
        mig.uuid,
        profile(name, attributes),
        str(mig.gpu_instance),
        str(mig.compute_instance),
    )
    memory = gpu.query_part(mig.handle, "mig_memory", pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
    if memory is not None:
        yield from gpu.value(
            "rankwatch_gpu_mig_memory_total_bytes", "mig_memory", memory.total, MEMORY_BYTES, mig.uuid
        )
        yield from gpu.value(
            "rankwatch_gpu_mig_memory_used_bytes", "mig_memory", memory.used, MEMORY_BYTES, mig.uuid
        )
