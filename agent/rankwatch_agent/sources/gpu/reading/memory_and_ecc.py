"""Device memory and its health: use, processes, ECC errors, replaced rows, and the recovery it needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device, FieldKey
from rankwatch_agent.sources.gpu.reading.units import EVENTS, FLAG, MEMORY_BYTES, ROWS

_TOTAL = metric("rankwatch_gpu_memory_total_bytes").name
_USED = metric("rankwatch_gpu_memory_used_bytes").name
_FREE = metric("rankwatch_gpu_memory_free_bytes").name
_RESERVED = metric("rankwatch_gpu_memory_reserved_bytes").name
_PROCESSES = metric("rankwatch_gpu_processes").name
_PROCESS_MEMORY = metric("rankwatch_gpu_process_memory_bytes").name
_ECC_ERRORS = metric("rankwatch_gpu_ecc_errors_total").name
_ROWS = metric("rankwatch_gpu_remapped_rows").name
_REMAP_PENDING = metric("rankwatch_gpu_row_remap_pending").name
_REMAP_FAILED = metric("rankwatch_gpu_row_remap_failed").name
_ACTION = metric("rankwatch_gpu_recovery_action").name

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

_ACTION_FIELD = (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)  # in DCGM, 230 means XID errors
_RESET_FIELD = (pynvml.NVML_FI_DEV_RESET_STATUS, 0)
_DRAIN_FIELD = (pynvml.NVML_FI_DEV_DRAIN_AND_RESET_STATUS, 0)
_RECOVERY = "recovery_action"
_NONE = "none"
_RESET = "gpu_reset"
_DRAIN = "drain_and_reset"
_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: _NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: _RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "node_reboot",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain_p2p",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: _DRAIN,
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover_imex_domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "bus_reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "system_reboot",
}

FIELDS: dict[FieldKey, str] = {
    **dict.fromkeys([*(key for key, _ in _REMAPPED_FIELDS), _PENDING_FIELD, _FAILED_FIELD], _REMAP),
    **dict.fromkeys([_ACTION_FIELD, _RESET_FIELD, _DRAIN_FIELD], _RECOVERY),
}


def read_memory(gpu: Device) -> Iterable[Sample]:
    """Total, used, free and reserved memory.

    An old driver counts reserved memory as used, so there only total and free are exported.
    """
    memory = gpu.query_first(
        "memory",
        (pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2),
        (nvml_memory_info_v1,),
    )
    if memory is None:
        return
    yield from gpu.value(_TOTAL, "memory", memory.total, MEMORY_BYTES)
    yield from gpu.value(_FREE, "memory", memory.free, MEMORY_BYTES)
    if isinstance(memory, pynvml.c_nvmlMemory_v2_t):
        yield from gpu.value(_USED, "memory", memory.used, MEMORY_BYTES)
        yield from gpu.value(_RESERVED, "memory", memory.reserved, MEMORY_BYTES)


def nvml_memory_info_v1(handle: object) -> Any:
    """nvmlDeviceGetMemoryInfo without a version, under a name that `query_first` can tell apart."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def read_processes(gpu: Device) -> Iterable[Sample]:
    """The number of processes with a compute context, and the memory of each where the driver knows it."""
    found = gpu.query("processes", pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
    if found is None:
        return
    memory: dict[int, float | None] = {}
    for process in found:
        # a process may have a context in several MIG instances: its memory is the sum
        used, before = process.usedGpuMemory, memory.get(process.pid)
        memory[process.pid] = before if used is None else used + (before or 0)
    yield gpu.sample(_PROCESSES, len(memory))
    exported = dict(sorted(memory.items())[:MAX_PROCESSES])
    gpu.pids = tuple(exported)
    for pid, used in exported.items():
        yield from gpu.value(_PROCESS_MEMORY, "process_memory", used, MEMORY_BYTES, str(pid))


def read_ecc(gpu: Device) -> Iterable[Sample]:
    """ECC errors where ECC is on, and the state of the row remapper."""
    mode = gpu.query("ecc_mode", pynvml.nvmlDeviceGetEccMode)
    if mode is not None and mode[0] == pynvml.NVML_FEATURE_ENABLED:
        for error, kind, counter, scope in _ECC_COUNTERS:
            count = gpu.query("ecc_errors", pynvml.nvmlDeviceGetTotalEccErrors, error, counter)
            yield from gpu.value(_ECC_ERRORS, "ecc_errors", count, EVENTS, kind, scope)
    for key, kind in _REMAPPED_FIELDS:
        yield from gpu.field(_ROWS, _REMAP, key, ROWS, kind)
    yield from gpu.field(_REMAP_PENDING, _REMAP, _PENDING_FIELD, FLAG)
    yield from gpu.field(_REMAP_FAILED, _REMAP, _FAILED_FIELD, FLAG)


def read_recovery(gpu: Device) -> Iterable[Sample]:
    """The recovery action that the driver requests, on older drivers derived from the reset status."""
    number = gpu.fields.get(_ACTION_FIELD)
    if number is not None:
        action = _ACTIONS.get(int(number))
        if action is None:
            gpu.reject(_RECOVERY)
    else:
        action = _by_status(gpu.fields.get(_RESET_FIELD), gpu.fields.get(_DRAIN_FIELD))
    if action is not None:
        yield gpu.sample(_ACTION, 1.0, action)


def _by_status(reset: float | None, drain: float | None) -> str | None:
    """The action by the two flags of drivers before 570."""
    if reset == 1:
        return _RESET
    if drain == 1:
        return _DRAIN
    return _NONE if reset == 0 and drain in (0, None) else None
