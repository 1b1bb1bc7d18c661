"""Device memory and its health: use, processes, ECC errors, replaced rows, and the recovery it needs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import pynvml

from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import EVENTS, FLAG, MEMORY_BYTES, ROWS, Device, FieldKey

_ACTION = "rankwatch_gpu_recovery_action"

MAX_PROCESSES = 128
"""Processes of one GPU that get series of their own; all of them are counted."""

_ECC_COUNTERS = tuple(
    (error, kind, counter, scope)
    for error, kind in (
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "corrected"),
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, "uncorrected"),
    )
    for counter, scope in ((pynvml.NVML_VOLATILE_ECC, "volatile"), (pynvml.NVML_AGGREGATE_ECC, "aggregate"))
)
_REMAPPED_FIELDS = (
    ((pynvml.NVML_FI_DEV_REMAPPED_COR, 0), "corrected"),
    ((pynvml.NVML_FI_DEV_REMAPPED_UNC, 0), "uncorrected"),
)
_PENDING_FIELD = (pynvml.NVML_FI_DEV_REMAPPED_PENDING, 0)
_FAILED_FIELD = (pynvml.NVML_FI_DEV_REMAPPED_FAILURE, 0)
_REMAP = "row_remap"
_AVAILABILITIES = ("max", "high", "partial", "low", "none")
_RETIRED_FIELDS = (
    ((pynvml.NVML_FI_DEV_RETIRED_SBE, 0), "corrected"),
    ((pynvml.NVML_FI_DEV_RETIRED_DBE, 0), "uncorrected"),
)
_RETIREMENT_FIELD = (pynvml.NVML_FI_DEV_RETIRED_PENDING, 0)
_RETIRED = "retired_pages"

_SRAM = "sram_ecc"
_SRAM_COUNTERS = (
    ("volatileCor", "corrected", "volatile"),
    ("volatileUncParity", "uncorrected_parity", "volatile"),
    ("volatileUncSecDed", "uncorrected_secded", "volatile"),
    ("aggregateCor", "corrected", "aggregate"),
    ("aggregateUncParity", "uncorrected_parity", "aggregate"),
    ("aggregateUncSecDed", "uncorrected_secded", "aggregate"),
)

_ACTION_FIELD = (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)  # in DCGM, 230 means XID errors
_RESET_FIELD = (pynvml.NVML_FI_DEV_RESET_STATUS, 0)
_DRAIN_FIELD = (pynvml.NVML_FI_DEV_DRAIN_AND_RESET_STATUS, 0)
_RECOVERY = "recovery_action"
_NONE = "none"
_RESET = "gpu_reset"
_DRAIN = "drain_and_reset"
_BUS_RESET = "bus_reset"
_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: _NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: _RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "node_reboot",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain_p2p",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: _DRAIN,
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover_imex_domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: _BUS_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "system_reboot",
}
_NEW_ACTION = 5
_NEW_ACTIONS_SINCE = (610,)
_EARLY_BUS_RESET_BRANCH = (580,)
"""There action 5 is a reset of the bus (nvidia-ml-py 13.580); from 610 on it is the recovery of IMEX."""

FIELDS: dict[FieldKey, str] = {
    **dict.fromkeys([*(key for key, _ in _REMAPPED_FIELDS), _PENDING_FIELD, _FAILED_FIELD], _REMAP),
    **dict.fromkeys([_ACTION_FIELD, _RESET_FIELD, _DRAIN_FIELD], _RECOVERY),
    **dict.fromkeys([*(key for key, _ in _RETIRED_FIELDS), _RETIREMENT_FIELD], _RETIRED),
}


def read_memory(gpu: Device) -> Iterable[Sample]:
    """Total and used memory.

    An old driver counts reserved memory as used, so there only the total is exported.
    """
    memory = gpu.query_first(
        "memory",
        (pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2),
        (nvml_memory_info_v1,),
    )
    if memory is None:
        return
    yield from gpu.value("rankwatch_gpu_memory_total_bytes", "memory", memory.total, MEMORY_BYTES)
    if isinstance(memory, pynvml.c_nvmlMemory_v2_t):
        yield from gpu.value("rankwatch_gpu_memory_used_bytes", "memory", memory.used, MEMORY_BYTES)


def nvml_memory_info_v1(handle: object) -> Any:
    """Call nvmlDeviceGetMemoryInfo without a version, under a name that `query_first` can tell apart."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def read_processes(gpu: Device) -> Iterable[Sample]:
    """Yield the number of processes with a compute context, and the memory of each that the driver knows."""
    found = gpu.query("processes", pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
    if found is None:
        return
    memory: dict[int, float | None] = {}
    for process in found:
        # a process may have a context in several MIG instances: its memory is the sum
        used, before = process.usedGpuMemory, memory.get(process.pid)
        memory[process.pid] = before if used is None else used + (before or 0)
    yield gpu.sample("rankwatch_gpu_processes", len(memory))
    exported = dict(sorted(memory.items())[:MAX_PROCESSES])
    gpu.pids = tuple(memory)
    for pid, used in exported.items():
        yield from gpu.value(
            "rankwatch_gpu_process_memory_bytes", "process_memory", used, MEMORY_BYTES, str(pid)
        )


def read_ecc(gpu: Device) -> Iterable[Sample]:
    """Yield the errors that ECC has found, where it is on."""
    current, _ = gpu.query("ecc_mode", pynvml.nvmlDeviceGetEccMode) or (None, None)
    if current == pynvml.NVML_FEATURE_ENABLED:
        for error, kind, counter, scope in _ECC_COUNTERS:
            count = gpu.query("ecc_errors", pynvml.nvmlDeviceGetTotalEccErrors, error, counter)
            yield from gpu.value("rankwatch_gpu_ecc_errors_total", "ecc_errors", count, EVENTS, kind, scope)
        yield from _sram(gpu)


def _sram(gpu: Device) -> Iterable[Sample]:
    """Yield errors of the SRAM, and whether they exceed the limit beyond which NVIDIA replaces the GPU."""
    status = gpu.query(_SRAM, _sram_status)
    if status is None:
        return
    yield from gpu.value("rankwatch_gpu_sram_ecc_threshold_exceeded", _SRAM, status.bThresholdExceeded, FLAG)
    for counter, kind, scope in _SRAM_COUNTERS:
        yield from gpu.value(
            "rankwatch_gpu_sram_ecc_errors_total", _SRAM, getattr(status, counter), EVENTS, kind, scope
        )


def _sram_status(handle: object) -> Any:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


def read_repairs(gpu: Device) -> Iterable[Sample]:
    """Yield replaced rows; on GPUs before Ampere, which cannot replace rows, retired pages."""
    for key, kind in _REMAPPED_FIELDS:
        yield from gpu.field("rankwatch_gpu_remapped_rows", _REMAP, key, ROWS, kind)
    yield from gpu.field("rankwatch_gpu_row_remap_pending", _REMAP, _PENDING_FIELD, FLAG)
    yield from gpu.field("rankwatch_gpu_row_remap_failed", _REMAP, _FAILED_FIELD, FLAG)
    for key, kind in _RETIRED_FIELDS:
        yield from gpu.field("rankwatch_gpu_retired_pages", _RETIRED, key, ROWS, kind)
    yield from gpu.field("rankwatch_gpu_page_retirement_pending", _RETIRED, _RETIREMENT_FIELD, FLAG)


def read_reserve(gpu: Device) -> Iterable[Sample]:
    """Yield the banks of memory by the reserved rows that they have left. These change only at a reset."""
    histogram = gpu.query("row_remap_banks", pynvml.nvmlDeviceGetRowRemapperHistogram)
    if histogram is not None:
        for availability in _AVAILABILITIES:
            banks = getattr(histogram, availability)
            yield from gpu.value(
                "rankwatch_gpu_row_remap_banks", "row_remap_banks", banks, ROWS, availability
            )


def read_recovery(gpu: Device) -> Iterable[Sample]:
    """Yield the recovery action that the driver requests, on older drivers derived from the reset status."""
    number = gpu.fields.get(_ACTION_FIELD)
    if number is not None:
        action = _by_number(int(number), gpu.driver_version)
        if action is None:
            gpu.reject(_RECOVERY)
    else:
        action = _by_status(gpu.fields.get(_RESET_FIELD), gpu.fields.get(_DRAIN_FIELD))
    if gpu.reset_required and action in (None, _NONE):
        yield from read_reset(gpu)
    elif action is not None:
        yield gpu.sample(_ACTION, 1.0, action)


def read_reset(gpu: Device) -> Iterable[Sample]:
    """Yield the action for a GPU whose calls the driver refuses until it is reset."""
    yield gpu.sample(_ACTION, 1.0, _RESET)


def _by_number(number: int, driver_version: tuple[int, ...]) -> str | None:
    branch = driver_version[:1]
    if number == _NEW_ACTION and branch == _EARLY_BUS_RESET_BRANCH:
        return _BUS_RESET
    return _ACTIONS.get(number) if number < _NEW_ACTION or branch >= _NEW_ACTIONS_SINCE else None


def _by_status(reset: float | None, drain: float | None) -> str | None:
    """Return the action by the two flags of drivers before 570."""
    if reset == 1:
        return _RESET
    if drain == 1:
        return _DRAIN
    return _NONE if reset == 0 and drain in (0, None) else None
