"""What each metric is called over OTLP: one table of standard names, one rule for all others.

The standard names are those of OpenTelemetry's semantic conventions (hardware and system metrics, in
development there): https://opentelemetry.io/docs/specs/semconv/hardware/. A metric without an entry in
the table goes by its own name: `rankwatch_gpu_activity_ratio` is `rankwatch.gpu.activity`. The unit stands
in the field for it, in UCUM, never in the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from types import MappingProxyType

from rankwatch.conventions.metrics import Kind, Label, Metric


class Instrument(StrEnum):
    """OpenTelemetry's kind of a metric."""

    COUNTER = "counter"
    UP_DOWN_COUNTER = "up_down_counter"
    """What the conventions want for sizes and states; a gauge that may be added up."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class OtelMetric:
    """A metric in OpenTelemetry's terms."""

    name: str
    instrument: Instrument
    unit: str
    """UCUM: s, By, 1, {error}."""
    description: str
    attributes: Mapping[str, tuple[Label, ...]]
    """Attribute -> the labels it is made of, joined by a slash where there are several."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Attributes with the same value on every series of the Prometheus metric."""
    only: Mapping[Label, str] = field(default_factory=dict)
    """Where not empty, only series with these labels; the others go by their own name."""


def otel_metric(metric: Metric, labels: tuple[str, ...]) -> OtelMetric:
    """Under what a series (its label values in declared order) goes over OTLP."""
    standard = STANDARD.get(metric.name)
    if standard is None:
        return own_metric(metric)
    fits = all(labels[metric.labels.index(label)] == value for label, value in standard.only.items())
    return standard if fits else own_metric(metric)


@cache
def own_metric(metric: Metric) -> OtelMetric:
    """The metric in rankwatch's own namespace."""
    return OtelMetric(
        name=_OWN_NAMES.get(metric.name) or _own_name(metric),
        instrument=_INSTRUMENTS[metric.kind],
        unit=_OWN_UNITS.get(metric.name) or _UNITS[_unit_word(metric)],
        description=metric.help,
        attributes={_attribute(metric, label): (label,) for label in metric.labels},
    )


_INSTRUMENTS = {
    Kind.COUNTER: Instrument.COUNTER,
    Kind.GAUGE: Instrument.GAUGE,
    Kind.INFO: Instrument.GAUGE,
    Kind.HISTOGRAM: Instrument.HISTOGRAM,
}
_UNITS = {
    "seconds": "s",
    "bytes": "By",
    "celsius": "Cel",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "ratio": "1",
    "1": "1",
}
_COUNTED = {"seconds": "_time", "bytes": "_io"}
"""What a counter of a unit is called, as in system.cpu.time and system.network.io."""
_PARTS = ("flight_recorder", "kernel_log")
"""Parts of rankwatch whose names are two words; all others are one."""
_OWN_NAMES = {
    # A name must not be the beginning of another one.
    "rankwatch_step": "rankwatch.step.number",
    "rankwatch_scalar": "rankwatch.scalar.value",
    "rankwatch_checkpoint_bytes": "rankwatch.checkpoint.size",
    "rankwatch_norm_ratio": "rankwatch.norm.relative",
}
_OWN_UNITS = {"rankwatch_gpu_pcie_throughput_bytes": "By/s"}

_ATTRIBUTES = {
    Label.GPU: "hw.id",
    Label.MODEL: "hw.model",
    Label.SERIAL: "hw.serial_number",
    Label.DRIVER_VERSION: "hw.driver_version",
    Label.FIRMWARE_VERSION: "hw.firmware_version",
    Label.DIRECTION: "network.io.direction",
    Label.NETWORK_DEVICE: "network.interface.name",
    Label.EXCEPTION: "exception.type",
    Label.POD_NAMESPACE: "k8s.namespace.name",
    Label.POD_NAME: "k8s.pod.name",
    Label.POD_CONTAINER: "k8s.container.name",
}
"""Labels that mean the same as a standard attribute; the others are attributes `rankwatch.<label>`."""
_DEVICES = {"rankwatch_network_": "network.interface.name", "rankwatch_disk_": "system.device"}
"""What the label device is, by the beginning of the metric's name."""


def _own_name(metric: Metric) -> str:
    words = metric.name.removeprefix("rankwatch_").removesuffix("_total")
    unit = _unit_word(metric)
    if words.endswith(f"_{unit}"):
        words = words.removesuffix(f"_{unit}")
        words += _COUNTED.get(unit, "") if metric.kind is Kind.COUNTER else ""
    part = next((each for each in _PARTS if words.startswith(f"{each}_")), words.partition("_")[0])
    return ".".join(filter(None, ("rankwatch", part, words.removeprefix(part).removeprefix("_"))))


def _unit_word(metric: Metric) -> str:
    return "ratio" if metric.name.endswith("_ratio") else metric.unit


def _attribute(metric: Metric, label: Label) -> str:
    if label is Label.DEVICE:
        for beginning, attribute in _DEVICES.items():
            if metric.name.startswith(beginning):
                return attribute
    return _ATTRIBUTES.get(label, f"rankwatch.{label}")


_NAMES: dict[str, tuple[Instrument, str, str]] = {
    "hw.gpu.utilization": (Instrument.GAUGE, "1", "Share of time in which the GPU was busy."),
    "hw.gpu.memory.limit": (Instrument.UP_DOWN_COUNTER, "By", "Memory of the GPU."),
    "hw.gpu.memory.usage": (Instrument.UP_DOWN_COUNTER, "By", "Memory of the GPU in use."),
    "hw.gpu.io": (Instrument.COUNTER, "By", "Bytes received and transmitted by the GPU."),
    "hw.energy": (Instrument.COUNTER, "J", "Energy used by the component."),
    "hw.power": (Instrument.GAUGE, "W", "Power drawn by the component."),
    "hw.temperature": (Instrument.GAUGE, "Cel", "Temperature of the component."),
    "hw.status": (Instrument.UP_DOWN_COUNTER, "1", "1 where the component is in the state, else 0."),
    "hw.errors": (Instrument.COUNTER, "{error}", "Errors of the component by type."),
    "hw.fan.speed_ratio": (Instrument.GAUGE, "1", "Speed of the fan as share of its highest."),
    "hw.network.io": (Instrument.COUNTER, "By", "Bytes received and transmitted by the port."),
    "hw.network.packets": (Instrument.COUNTER, "{packet}", "Packets received and transmitted by the port."),
    "hw.network.up": (Instrument.UP_DOWN_COUNTER, "1", "1 where the link is up, else 0."),
    "hw.network.bandwidth.limit": (Instrument.UP_DOWN_COUNTER, "By/s", "Speed of the link."),
    "system.network.io": (Instrument.COUNTER, "By", "Bytes received and transmitted by the interface."),
    "system.network.errors": (Instrument.COUNTER, "{error}", "Errors of the interface."),
    "system.network.packet.dropped": (Instrument.COUNTER, "{packet}", "Packets the interface dropped."),
    "system.cpu.time": (Instrument.COUNTER, "s", "CPU time of the host by mode."),
    "system.cpu.logical.count": (Instrument.UP_DOWN_COUNTER, "{cpu}", "Logical CPUs online."),
    "system.memory.limit": (Instrument.UP_DOWN_COUNTER, "By", "Memory of the host."),
    "system.memory.linux.available": (
        Instrument.UP_DOWN_COUNTER,
        "By",
        "Memory available without swapping.",
    ),
}
"""Standard name -> instrument, unit and description."""


def _standard(
    name: str,
    attributes: Mapping[str, tuple[Label, ...]] | None = None,
    constants: Mapping[str, str] | None = None,
    only: Mapping[Label, str] | None = None,
) -> OtelMetric:
    instrument, unit, description = _NAMES[name]
    return OtelMetric(
        name=name,
        instrument=instrument,
        unit=unit,
        description=description,
        attributes=attributes or {},
        constants=constants or {},
        only=only or {},
    )


_GPU = {"hw.id": (Label.GPU,)}
_IS_GPU = {"hw.type": "gpu"}
_INTERFACE = {"network.interface.name": (Label.DEVICE,)}
_NIC = {"hw.id": (Label.DEVICE,), **_INTERFACE}
_PORT = {
    "hw.id": (Label.DEVICE, Label.PORT),
    "rankwatch.device": (Label.DEVICE,),
    "rankwatch.port": (Label.PORT,),
}
_IS_NETWORK = {"hw.type": "network"}
_RECEIVE = {"network.io.direction": "receive"}
_TRANSMIT = {"network.io.direction": "transmit"}

STANDARD: Mapping[str, OtelMetric] = MappingProxyType(
    {
        "rankwatch_gpu_utilization_ratio": _standard(
            "hw.gpu.utilization", _GPU, {**_IS_GPU, "hw.gpu.task": "general"}
        ),
        "rankwatch_gpu_video_utilization_ratio": _standard(
            "hw.gpu.utilization", {**_GPU, "hw.gpu.task": (Label.UNIT,)}, _IS_GPU
        ),
        "rankwatch_gpu_fan_speed_ratio": _standard(
            "hw.fan.speed_ratio",
            {"hw.id": (Label.GPU, Label.FAN), "hw.parent": (Label.GPU,)},
            {"hw.type": "fan"},
        ),
        "rankwatch_gpu_memory_total_bytes": _standard("hw.gpu.memory.limit", _GPU, _IS_GPU),
        "rankwatch_gpu_memory_used_bytes": _standard("hw.gpu.memory.usage", _GPU, _IS_GPU),
        # The conventions have no attribute for the way the bytes took; ours keeps NVLink apart from PCIe.
        "rankwatch_gpu_nvlink_bytes_total": _standard(
            "hw.gpu.io",
            {**_GPU, "network.io.direction": (Label.DIRECTION,)},
            {**_IS_GPU, "rankwatch.gpu.link": "nvlink"},
        ),
        "rankwatch_gpu_energy_joules_total": _standard("hw.energy", _GPU, _IS_GPU),
        "rankwatch_gpu_power_watts": _standard("hw.power", _GPU, _IS_GPU),
        "rankwatch_gpu_temperature_celsius": _standard(
            "hw.temperature", {**_GPU, "hw.sensor_location": (Label.SENSOR,)}, _IS_GPU
        ),
        "rankwatch_gpu_up": _standard("hw.status", _GPU, {**_IS_GPU, "hw.state": "ok"}),
        # Only one scope: whoever adds up hw.errors must not count an error twice.
        "rankwatch_gpu_ecc_errors_total": _standard(
            "hw.errors", {**_GPU, "error.type": (Label.KIND,)}, _IS_GPU, {Label.SCOPE: "volatile"}
        ),
        "rankwatch_rdma_receive_bytes_total": _standard("hw.network.io", _PORT, _IS_NETWORK | _RECEIVE),
        "rankwatch_rdma_transmit_bytes_total": _standard("hw.network.io", _PORT, _IS_NETWORK | _TRANSMIT),
        "rankwatch_rdma_receive_packets_total": _standard(
            "hw.network.packets", _PORT, _IS_NETWORK | _RECEIVE
        ),
        "rankwatch_rdma_transmit_packets_total": _standard(
            "hw.network.packets", _PORT, _IS_NETWORK | _TRANSMIT
        ),
        "rankwatch_rdma_port_up": _standard("hw.network.up", _PORT, _IS_NETWORK),
        "rankwatch_rdma_port_rate_bytes": _standard("hw.network.bandwidth.limit", _PORT, _IS_NETWORK),
        "rankwatch_rdma_errors_total": _standard(
            "hw.errors", {**_PORT, "error.type": (Label.COUNTER,)}, _IS_NETWORK
        ),
        "rankwatch_network_up": _standard("hw.network.up", _NIC, _IS_NETWORK),
        "rankwatch_network_speed_bytes": _standard("hw.network.bandwidth.limit", _NIC, _IS_NETWORK),
        "rankwatch_network_receive_bytes_total": _standard("system.network.io", _INTERFACE, _RECEIVE),
        "rankwatch_network_transmit_bytes_total": _standard("system.network.io", _INTERFACE, _TRANSMIT),
        "rankwatch_network_receive_errors_total": _standard("system.network.errors", _INTERFACE, _RECEIVE),
        "rankwatch_network_transmit_errors_total": _standard("system.network.errors", _INTERFACE, _TRANSMIT),
        "rankwatch_network_receive_drops_total": _standard(
            "system.network.packet.dropped", _INTERFACE, _RECEIVE
        ),
        "rankwatch_network_transmit_drops_total": _standard(
            "system.network.packet.dropped", _INTERFACE, _TRANSMIT
        ),
        "rankwatch_host_cpu_seconds_total": _standard("system.cpu.time", {"cpu.mode": (Label.MODE,)}),
        "rankwatch_host_cpus": _standard("system.cpu.logical.count"),
        "rankwatch_host_memory_total_bytes": _standard("system.memory.limit"),
        "rankwatch_host_memory_available_bytes": _standard("system.memory.linux.available"),
    }
)
"""Prometheus name -> standard metric, where the conventions have one that means the same."""
