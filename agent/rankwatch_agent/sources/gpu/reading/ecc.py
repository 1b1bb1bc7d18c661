"""Memory errors: ECC counts, and rows that were replaced."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import EVENTS, FLAG, ROWS

_ERRORS = metric("rankwatch_gpu_ecc_errors_total").name
_ROWS = metric("rankwatch_gpu_remapped_rows").name
_PENDING = metric("rankwatch_gpu_row_remap_pending").name
_FAILED = metric("rankwatch_gpu_row_remap_failed").name
_COUNTERS = tuple(
    (error, kind, counter, scope)
    for error, kind in (
        (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "corrected"),
        (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, "uncorrected"),
    )
    for counter, scope in ((pynvml.NVML_VOLATILE_ECC, "volatile"), (pynvml.NVML_AGGREGATE_ECC, "aggregate"))
)
_REMAPPED = (
    ((pynvml.NVML_FI_DEV_REMAPPED_COR, 0), "corrected"),
    ((pynvml.NVML_FI_DEV_REMAPPED_UNC, 0), "uncorrected"),
)
_PENDING_FIELD = (pynvml.NVML_FI_DEV_REMAPPED_PENDING, 0)
_FAILED_FIELD = (pynvml.NVML_FI_DEV_REMAPPED_FAILURE, 0)
_REMAP = "row_remap"

FIELDS = dict.fromkeys([*(key for key, _ in _REMAPPED), _PENDING_FIELD, _FAILED_FIELD], _REMAP)


def read(gpu: Device) -> Iterable[Sample]:
    """ECC errors where ECC is on, and the state of the row remapper."""
    mode = gpu.ask("ecc_mode", pynvml.nvmlDeviceGetEccMode)
    if mode is not None and mode[0] == pynvml.NVML_FEATURE_ENABLED:
        for error, kind, counter, scope in _COUNTERS:
            count = gpu.ask("ecc_errors", pynvml.nvmlDeviceGetTotalEccErrors, error, counter)
            yield from gpu.checked(_ERRORS, "ecc_errors", count, EVENTS, kind, scope)
    for key, kind in _REMAPPED:
        yield from gpu.field(_ROWS, _REMAP, key, ROWS, kind)
    yield from gpu.field(_PENDING, _REMAP, _PENDING_FIELD, FLAG)
    yield from gpu.field(_FAILED, _REMAP, _FAILED_FIELD, FLAG)
