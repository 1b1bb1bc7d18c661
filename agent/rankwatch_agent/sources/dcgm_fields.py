"""The table that maps fields of DCGM to our metrics.

Names and units follow dcgm_fields.h. Profiling fields are averages over dcgm-exporter's own interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.conventions.metrics import Metric, metric

_MEBIBYTE = 1 << 20
_MEGAHERTZ = 1e6
_MAX_BYTES = 1e14
_MAX_COUNT = 2.0**53


class KnownField(NamedTuple):
    """The metric of a field, and how a raw value becomes a value of the metric."""

    metric: Metric
    extra: tuple[str, ...]
    """Values of the labels after gpu (and mig)."""
    scale: float
    """Our value = raw value * scale."""
    highest: float
    """Largest plausible value in our unit. The lowest is 0, for temperatures -90."""
    mig: Metric | None = None
    """The metric for a MIG instance. Where it is None, the value belongs to the whole GPU, even if the line
    names an instance."""

    def value(self, raw: float) -> float | None:
        """Return the value in our unit; None where it is implausible."""
        scaled = raw * self.scale
        lowest = -90.0 if self.metric.unit == "celsius" else 0.0
        return scaled if lowest <= scaled <= self.highest else None


_ACTIVITY = metric("rankwatch_gpu_activity_ratio")
_MIG_ACTIVITY = metric("rankwatch_gpu_mig_activity_ratio")


def _activity(unit: str) -> KnownField:
    return KnownField(_ACTIVITY, (unit,), 1, 1.0, _MIG_ACTIVITY)


def _plain(name: str, highest: float, *extra: str, scale: float = 1, mig: str = "") -> KnownField:
    return KnownField(metric(name), extra, scale, highest, metric(mig) if mig else None)


_THROUGHPUT = "rankwatch_gpu_pcie_throughput_bytes"
_CLOCK = "rankwatch_gpu_clock_hertz"
_ECC = "rankwatch_gpu_ecc_errors_total"
_ROWS = "rankwatch_gpu_remapped_rows"
_TEMPERATURE = "rankwatch_gpu_temperature_celsius"

KNOWN_FIELDS: Mapping[str, KnownField] = MappingProxyType(
    {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _activity("graphics"),
        "DCGM_FI_PROF_SM_ACTIVE": _activity("sm"),
        "DCGM_FI_PROF_SM_OCCUPANCY": _activity("sm_occupancy"),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _activity("tensor"),
        "DCGM_FI_PROF_DRAM_ACTIVE": _activity("dram"),
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE": _activity("fp64"),
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE": _activity("fp32"),
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE": _activity("fp16"),
        "DCGM_FI_PROF_PIPE_INT_ACTIVE": _activity("integer"),
        "DCGM_FI_PROF_PCIE_TX_BYTES": _plain(_THROUGHPUT, _MAX_BYTES, "transmit"),
        "DCGM_FI_PROF_PCIE_RX_BYTES": _plain(_THROUGHPUT, _MAX_BYTES, "receive"),
        "DCGM_FI_DEV_GPU_UTIL": _plain("rankwatch_gpu_utilization_ratio", 1.0, scale=0.01),
        "DCGM_FI_DEV_GPU_TEMP": _plain(_TEMPERATURE, 250.0, "core"),
        "DCGM_FI_DEV_MEMORY_TEMP": _plain(_TEMPERATURE, 250.0, "memory"),
        "DCGM_FI_DEV_POWER_USAGE": _plain("rankwatch_gpu_power_watts", 1e5),
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": _plain("rankwatch_gpu_power_limit_watts", 1e5),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": _plain("rankwatch_gpu_energy_joules_total", 1e13, scale=1e-3),
        "DCGM_FI_DEV_SM_CLOCK": _plain(_CLOCK, 1e11, "sm", scale=_MEGAHERTZ),
        "DCGM_FI_DEV_MEM_CLOCK": _plain(_CLOCK, 1e11, "memory", scale=_MEGAHERTZ),
        "DCGM_FI_DEV_VIDEO_CLOCK": _plain(_CLOCK, 1e11, "video", scale=_MEGAHERTZ),
        "DCGM_FI_DEV_FB_TOTAL": _plain(
            "rankwatch_gpu_memory_total_bytes",
            _MAX_BYTES,
            scale=_MEBIBYTE,
            mig="rankwatch_gpu_mig_memory_total_bytes",
        ),
        "DCGM_FI_DEV_FB_USED": _plain(
            "rankwatch_gpu_memory_used_bytes",
            _MAX_BYTES,
            scale=_MEBIBYTE,
            mig="rankwatch_gpu_mig_memory_used_bytes",
        ),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": _plain("rankwatch_gpu_pcie_replays_total", _MAX_COUNT),
        "DCGM_FI_DEV_PCIE_LINK_GEN": _plain("rankwatch_gpu_pcie_generation", 20),
        "DCGM_FI_DEV_PCIE_LINK_WIDTH": _plain("rankwatch_gpu_pcie_width", 64),
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": _plain(_ECC, _MAX_COUNT, "corrected", "volatile"),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": _plain(_ECC, _MAX_COUNT, "uncorrected", "volatile"),
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": _plain(_ECC, _MAX_COUNT, "corrected", "aggregate"),
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": _plain(_ECC, _MAX_COUNT, "uncorrected", "aggregate"),
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": _plain(_ROWS, _MAX_COUNT, "corrected"),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": _plain(_ROWS, _MAX_COUNT, "uncorrected"),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": _plain("rankwatch_gpu_row_remap_failed", 1.0),
        "DCGM_FI_DEV_ROW_REMAP_PENDING": _plain("rankwatch_gpu_row_remap_pending", 1.0),
    }
)

_NEW_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_SM_UTIL_RATIO": "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_SM_OCCUPANCY_RATIO": "DCGM_FI_PROF_SM_OCCUPANCY",
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_DRAM_UTIL_RATIO": "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_PROF_FP64_UTIL_RATIO": "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
        "DCGM_FI_PROF_FP32_UTIL_RATIO": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        "DCGM_FI_PROF_FP16_UTIL_RATIO": "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS": "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": "DCGM_FI_DEV_MEMORY_TEMP",
        "DCGM_FI_DEV_BOARD_POWER_WATTS": "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_FAILED": "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    }
)
"""DCGM 4 renamed fields but kept their numbers and units. GPU_UTIL_RATIO is left out: its name says 0 to 1,
its number 0 to 100."""

_BLANKS = ((2.0**31 - 16, 2.0**31 - 1), (2.0**47, 2.0**47 + 15), (2.0**63 - 2048, math.inf))
"""DCGM's values for not found, not supported and not permitted (dcgm_structs.h, DCGM_*_BLANK): near the ends
of 32-bit and 64-bit integers, and at 2^47 for doubles. Doubles near 2^63 are at least 1,024 apart."""
_UNKNOWN = 2.0**32 - 1
"""NVML's value for an unknown 32-bit number."""


def old_name(field: str) -> str:
    """Return the name of a field before DCGM 4, which the table uses; other names come back unchanged."""
    return _NEW_NAMES.get(field, field)


def all_names(fields: tuple[str, ...]) -> frozenset[str]:
    """Return the names of these fields before and since DCGM 4."""
    wanted = {old_name(field) for field in fields}
    return frozenset(wanted | {new for new, old in _NEW_NAMES.items() if old in wanted})


def is_blank(value: float) -> bool:
    """Return True if a value stands for 'no value'."""
    if not math.isfinite(value) or value == _UNKNOWN:
        return True
    return any(low <= value <= high for low, high in _BLANKS)
