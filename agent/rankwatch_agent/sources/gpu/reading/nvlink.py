"""NVLinks: how many, how many are up, bytes and errors over all of them."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device, FieldKey
from rankwatch_agent.sources.gpu.reading.features import UNSUPPORTED
from rankwatch_agent.sources.gpu.reading.limits import COUNTER_BYTES, EVENTS, KIBIBYTES, Unit

_LINKS = metric("rankwatch_gpu_nvlinks").name
_ACTIVE = metric("rankwatch_gpu_nvlinks_active").name
_BYTES = metric("rankwatch_gpu_nvlink_bytes_total").name
_ERRORS = metric("rankwatch_gpu_nvlink_errors_total").name

MOST_LINKS = pynvml.NVML_NVLINK_MAX_LINKS
"""Ports that are looked for; a driver ends the search earlier, at the first number it does not know."""

_BYTE_FIELDS = (
    (
        "nvlink_bytes",
        KIBIBYTES,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "transmit"),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, "receive"),
    ),
    (
        "nvlink_bytes",
        COUNTER_BYTES,
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, "transmit"),
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, "receive"),
    ),
)
"""Up to Hopper, then NVLink 5: the first that answers is taken."""
_ERROR_FIELDS = {
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: ("nvlink_errors", "replay"),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: ("nvlink_errors", "recovery"),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: ("nvlink_errors", "crc"),
    pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS: ("nvlink_errors", "malformed_packet"),
    pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS: ("nvlink_errors", "buffer_overrun"),
    pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS: ("nvlink_errors", "effective"),
    pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS: ("nvlink_errors", "symbol"),
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS: ("nvlink_errors", "link_recovery_failed"),
}
_FEATURES = {field: feature for feature, _, *fields in _BYTE_FIELDS for field, _ in fields} | {
    field: feature for field, (feature, _) in _ERROR_FIELDS.items()
}


def link_fields(links: Iterable[int]) -> dict[FieldKey, str]:
    """The fields of these links: the scope of each is the number of its link."""
    return {(field, link): feature for link in links for field, feature in _FEATURES.items()}


class Total:
    """Sum of a counter over links that never falls.

    A link that is down is not asked and keeps its last value; one that counts from 0 again, as after a
    reset, goes on from there.
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._before = 0.0

    def note(self, link: int, value: float) -> None:
        """The link's counter now."""
        last = self._last.get(link)
        if last is not None and value < last:
            self._before += last
        self._last[link] = value

    def sum(self) -> float:
        """Over all links, down ones among them."""
        return self._before + sum(self._last.values())


class Nvlink:
    """The NVLinks of one GPU."""

    def __init__(self) -> None:
        self._ports: tuple[int, ...] = ()
        self._totals: dict[int, Total] = {}

    def find_active(self, gpu: Device) -> None:
        """Note which links are up; raises GpuLostError, DriverError."""
        if not gpu.features.wanted("nvlink"):
            return
        states = {} if self._ports and not gpu.ask_all else _probe(gpu)
        if not states:
            states = _states(gpu, self._ports)
        self._ports = tuple(states)
        if states:
            gpu.features.answered("nvlink")
            gpu.links = tuple(link for link, active in states.items() if active)

    def read(self, gpu: Device) -> Iterable[Sample]:
        """Ports, active ports, bytes by direction, errors by kind."""
        if not self._ports or not gpu.features.wanted("nvlink"):
            return
        yield gpu.sample(_LINKS, len(self._ports))
        yield gpu.sample(_ACTIVE, len(gpu.links))
        for _, unit, *fields in _BYTE_FIELDS:
            samples = [each for field, name in fields for each in self._sum(gpu, _BYTES, field, unit, name)]
            yield from samples
            if samples:
                break
        for field, (_, kind) in _ERROR_FIELDS.items():
            yield from self._sum(gpu, _ERRORS, field, EVENTS, kind)

    def _sum(self, gpu: Device, name: str, field: int, unit: Unit, label: str) -> Iterable[Sample]:
        total = self._totals.get(field)
        for link in gpu.links:
            raw = gpu.fields.get((field, link))
            if raw is None:
                continue
            value = gpu.accept(_FEATURES[field], raw, unit)
            if value is not None:
                if total is None:
                    total = self._totals[field] = Total()
                total.note(link, value)
        return (gpu.sample(name, total.sum(), label),) if total is not None else ()


def _probe(gpu: Device) -> dict[int, bool]:
    """Port -> whether it is up, up to the first number that the driver does not know; {} where unknown."""
    states: dict[int, bool] = {}
    for link in range(MOST_LINKS):
        try:
            states[link] = bool(pynvml.nvmlDeviceGetNvLinkState(gpu.handle, link))
        except pynvml.NVMLError as error:
            if states and error.value in UNSUPPORTED:
                continue
            if states and error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                break
            gpu.failed("nvlink", error.value)
            return {}
    return states


def _states(gpu: Device, ports: Iterable[int]) -> dict[int, bool]:
    """Known port -> whether it is up; one that fails counts as down, one that is gone does not count."""
    states: dict[int, bool] = {}
    for link in ports:
        try:
            states[link] = bool(pynvml.nvmlDeviceGetNvLinkState(gpu.handle, link))
        except pynvml.NVMLError as error:
            gpu.failed("nvlink", error.value)
            if error.value not in UNSUPPORTED:
                states[link] = False
    return states
