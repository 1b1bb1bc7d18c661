"""The links of a GPU: PCIe, NVLink, the fabric of NVSwitch systems, and the links between chips."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import pynvml

from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import (
    COUNTER_BYTES,
    EVENTS,
    FLAG,
    KIBIBYTES,
    LINKS,
    MEGABYTES_PER_SECOND,
    PCIE_GENERATION,
    PCIE_LANES,
    UNSUPPORTED,
    Device,
    FieldKey,
    Unit,
)

_PCIE = (
    ("pcie_generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration, PCIE_GENERATION),
    ("pcie_generation_max", pynvml.nvmlDeviceGetMaxPcieLinkGeneration, PCIE_GENERATION),
    ("pcie_width", pynvml.nvmlDeviceGetCurrPcieLinkWidth, PCIE_LANES),
    ("pcie_width_max", pynvml.nvmlDeviceGetMaxPcieLinkWidth, PCIE_LANES),
)
_REPLAY_FIELD = (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 0)

_C2C = "c2c"
_C2C_COUNT = (pynvml.NVML_FI_DEV_C2C_LINK_COUNT, 0)
_C2C_GAUGES = {
    pynvml.NVML_FI_DEV_C2C_LINK_GET_STATUS: ("rankwatch_gpu_c2c_links_active", FLAG),
    pynvml.NVML_FI_DEV_C2C_LINK_POWER_STATE: ("rankwatch_gpu_c2c_links_low_power", FLAG),
    pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW: ("rankwatch_gpu_c2c_bandwidth_bytes", MEGABYTES_PER_SECOND),
}
"""Field of a link -> metric, which is the sum over the links."""
_C2C_KINDS = {
    pynvml.NVML_FI_DEV_C2C_LINK_ERROR_INTR: "crc",
    pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY: "replay",
    pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B: "replay_back_to_back",
}
_C2C_FEATURES = {**dict.fromkeys(_C2C_GAUGES, _C2C), **dict.fromkeys(_C2C_KINDS, "c2c_errors")}

FIELDS: dict[FieldKey, str] = {_REPLAY_FIELD: "pcie_replays", _C2C_COUNT: _C2C}

_BYTES = "rankwatch_gpu_nvlink_bytes_total"
_ERRORS = "rankwatch_gpu_nvlink_errors_total"
_BY_LINK = {
    _BYTES: "rankwatch_gpu_nvlink_link_bytes_total",
    _ERRORS: "rankwatch_gpu_nvlink_link_errors_total",
}
"""Metric over all links -> the same of each link."""
_NVLINK_BYTES = "nvlink_bytes"
_NVLINK_ERRORS = "nvlink_errors"
_BYTE_FIELDS = (
    (
        KIBIBYTES,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "transmit"),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, "receive"),
    ),
    (
        COUNTER_BYTES,
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, "transmit"),
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, "receive"),
    ),
)
"""Up to Hopper, then NVLink 5: the first ones that answer are used."""
_ERROR_FIELDS = {
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: "replay",
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: "recovery",
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: "crc",
    pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS: "malformed_packet",
    pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS: "buffer_overrun",
    pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS: "effective",
    pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS: "symbol",
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS: "link_recovery_failed",
}
_NVLINK_FEATURES = {
    **{field: _NVLINK_BYTES for _, *fields in _BYTE_FIELDS for field, _ in fields},
    **dict.fromkeys(_ERROR_FIELDS, _NVLINK_ERRORS),
}

_FABRIC = "fabric"
_FABRIC_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not_started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
}


def read_pcie(gpu: Device) -> Iterable[Sample]:
    """Yield generation, lanes and replays."""
    for feature, function, unit in _PCIE:
        yield from gpu.value(f"rankwatch_gpu_{feature}", feature, gpu.query(feature, function), unit)
    yield from gpu.field("rankwatch_gpu_pcie_replays_total", "pcie_replays", _REPLAY_FIELD, EVENTS)


def nvlink_fields(links: Iterable[int]) -> dict[FieldKey, str]:
    """Return the fields of these NVLinks; the scope of each field is the number of its link."""
    return {(field, link): feature for link in links for field, feature in _NVLINK_FEATURES.items()}


class Nvlink:
    """The NVLinks of one GPU; `per_link` adds the series of each link, some 200 per GPU."""

    def __init__(self, *, per_link: bool = False) -> None:
        self._per_link = per_link
        self._ports: tuple[int, ...] = ()
        self._totals: dict[int, LinkTotal] = {}

    def find_active(self, gpu: Device) -> None:
        """Set `gpu.links` to the links that are up; raises GpuLostError, DriverError."""
        if not gpu.features.wanted("nvlink"):
            return
        states = {} if self._ports and not gpu.query_all else _probe(gpu)
        if not states:
            states = _states(gpu, self._ports)
        self._ports = tuple(states)
        if states:
            gpu.features.set_supported("nvlink")
            gpu.links = tuple(link for link, active in states.items() if active)

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Yield ports, active ports, bytes by direction, errors by kind."""
        if not self._ports or not gpu.features.wanted("nvlink"):
            return
        yield gpu.sample("rankwatch_gpu_nvlinks", len(self._ports))
        yield gpu.sample("rankwatch_gpu_nvlinks_active", len(gpu.links))
        for link in self._ports if self._per_link else ():
            yield gpu.sample("rankwatch_gpu_nvlink_link_up", float(link in gpu.links), str(link))
        for unit, *fields in _BYTE_FIELDS:
            samples = [each for field, name in fields for each in self._sum(gpu, _BYTES, field, unit, name)]
            yield from samples
            if samples:
                break
        for field, kind in _ERROR_FIELDS.items():
            yield from self._sum(gpu, _ERRORS, field, EVENTS, kind)

    def _sum(self, gpu: Device, name: str, field: int, unit: Unit, label: str) -> Iterable[Sample]:
        total = self._totals.get(field)
        for link in gpu.links:
            raw = gpu.fields.get((field, link))
            if raw is None:
                continue
            value = gpu.convert(_NVLINK_FEATURES[field], raw, unit)
            if value is not None:
                if total is None:
                    total = self._totals[field] = LinkTotal()
                total.update(link, value)
        if total is None:
            return
        yield gpu.sample(name, total.sum(), label)
        for link, value in total.last.items() if self._per_link else ():
            yield gpu.sample(_BY_LINK[name], value, str(link), label)


class LinkTotal:
    """Sum of a counter over links; it never falls.

    A link that is down is not read and keeps its last value. A counter that starts at 0 again, as after a
    reset, is added to what it had before.
    """

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        """Link -> its counter, also of links that are down."""
        self._before_resets = 0.0

    def update(self, link: int, value: float) -> None:
        last = self.last.get(link)
        if last is not None and value < last:
            self._before_resets += last
        self.last[link] = value

    def sum(self) -> float:
        """Sum over all links, also those that are down."""
        return self._before_resets + sum(self.last.values())


class ChipToChip:
    """The links of one GPU to its Grace CPU. Other GPUs have none, or the driver lacks the field.

    The first reading finds how many there are, the second one reads them.
    """

    def __init__(self) -> None:
        self._totals: dict[int, LinkTotal] = {}
        self.links = 0

    def fields(self) -> dict[FieldKey, str]:
        """Return the fields of the links; the scope of each field is the number of its link."""
        return {
            (field, link): feature for link in range(self.links) for field, feature in _C2C_FEATURES.items()
        }

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Yield links, active ones, their bandwidth, errors by kind."""
        count = gpu.fields.get(_C2C_COUNT)
        self.links = int(gpu.convert(_C2C, count, LINKS) or 0) if count else 0
        if not self.links:
            gpu.features.set_unsupported(_C2C)  # also where the driver knows the field
            return
        yield gpu.sample("rankwatch_gpu_c2c_links", self.links)
        for field, (name, unit) in _C2C_GAUGES.items():
            values = self._values(gpu, field, unit)
            if values:
                yield gpu.sample(name, sum(values.values()))
        for field, kind in _C2C_KINDS.items():
            for link, value in self._values(gpu, field, EVENTS).items():
                self._totals.setdefault(field, LinkTotal()).update(link, value)
            if field in self._totals:
                yield gpu.sample("rankwatch_gpu_c2c_errors_total", self._totals[field].sum(), kind)

    def _values(self, gpu: Device, field: int, unit: Unit) -> dict[int, float]:
        """Link -> the value of its field, for those that have it."""
        found: dict[int, float] = {}
        for link in range(self.links):
            raw = gpu.fields.get((field, link))
            value = None if raw is None else gpu.convert(_C2C_FEATURES[field], raw, unit)
            if value is not None:
                found[link] = value
        return found


def _probe(gpu: Device) -> dict[int, bool]:
    """Return port -> whether it is up, below the first number that the driver refuses; {} on an error."""
    states: dict[int, bool] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states[link] = bool(pynvml.nvmlDeviceGetNvLinkState(gpu.handle, link))
        except pynvml.NVMLError as error:
            if states and error.value in UNSUPPORTED:
                continue
            if states and error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                break
            gpu.handle_error("nvlink", error.value)
            return {}
    return states


def _states(gpu: Device, ports: Iterable[int]) -> dict[int, bool]:
    """Return known port -> whether it is up; one that fails counts as down, one that is gone is left out."""
    states: dict[int, bool] = {}
    for link in ports:
        try:
            states[link] = bool(pynvml.nvmlDeviceGetNvLinkState(gpu.handle, link))
        except pynvml.NVMLError as error:
            gpu.handle_error("nvlink", error.value)
            if error.value not in UNSUPPORTED:
                states[link] = False
    return states


_HEALTH_MASK = (
    ("degraded_bandwidth", 0, 0x3, 2),
    ("route_recovery", 2, 0x3, 2),
    ("route_unhealthy", 4, 0x3, 2),
    ("access_timeout_recovery", 6, 0x3, 2),
    ("incorrect_configuration", 8, 0xF, 1),
    ("no_partition", 12, 0x3, 1),
    ("fabric_manager_disconnected", 14, 0x3, 1),
)
"""Reason, place and width of its bits in the fabric's health mask (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_...),
and the value that denies the fault: 0 means unknown, every other value means the fault."""
_NO_HEALTH_MASK = 0xFFFFFFFF


def read_fabric(gpu: Device) -> Iterable[Sample]:
    """State of the fabric probe, and faults; a GPU without a fabric has neither."""
    if not gpu.features.wanted(_FABRIC):
        return
    info = gpu.query_first(_FABRIC, (_fabric_info,), (_fabric_info_without_health,))
    if info is None:
        return
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        gpu.features.set_unsupported(_FABRIC)
        return
    state = _FABRIC_STATES.get(info.state)
    if state is None:
        gpu.reject(_FABRIC)
        return
    if state == "completed" and info.status != pynvml.NVML_SUCCESS:
        state = "failed"  # the probe has ended with an error
    yield gpu.sample("rankwatch_gpu_fabric_state", 1.0, state)
    for reason, is_faulty in fabric_faults(getattr(info, "healthMask", _NO_HEALTH_MASK)):
        yield gpu.sample("rankwatch_gpu_fabric_degraded", float(is_faulty), reason)


def fabric_faults(mask: int) -> Iterable[tuple[str, bool]]:
    """Yield (reason, whether there is a fault) for each reason that a health mask knows about."""
    if mask == _NO_HEALTH_MASK:
        return
    for reason, shift, width, healthy in _HEALTH_MASK:
        value = mask >> shift & width
        if value:
            yield reason, value != healthy


def _fabric_info_without_health(handle: object) -> Any:
    """Return the fabric info of drivers before 545, which has no health."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return info


def _fabric_info(handle: object) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info
