"""What each metric is called over OTLP: standard names by opentelemetry.txt, one rule for all others.

The standard names are those of OpenTelemetry's semantic conventions (hardware and system metrics, in
development there): https://opentelemetry.io/docs/specs/semconv/hardware/. A metric without an entry in
the table goes by its own name: `rankwatch_gpu_activity_ratio` is `rankwatch.gpu.activity`. The unit stands
in the field for it, in UCUM, never in the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType

from rankwatch.conventions.metrics import Kind, Label, Metric


class Instrument(StrEnum):
    """OpenTelemetry's kind of a metric."""

    COUNTER = "counter"
    UP_DOWN_COUNTER = "up_down_counter"
    """Kind that the conventions want for sizes and states; a gauge that may be added up."""
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
    """Labels without which a series goes by its own name; empty where all series go by this one."""


def otel_metric(metric: Metric, labels: tuple[str, ...]) -> OtelMetric:
    """Return the metric as which a series (its label values in declared order) goes over OTLP."""
    standard = STANDARD.get(metric.name)
    if standard is None:
        return own_metric(metric)
    fits = all(labels[metric.labels.index(label)] == value for label, value in standard.only.items())
    return standard if fits else own_metric(metric)


@cache
def own_metric(metric: Metric) -> OtelMetric:
    """Return the metric in rankwatch's own namespace."""
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
"""Endings of counters by unit, as in system.cpu.time and system.network.io."""
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
"""Attributes that the label device stands for, by the beginning of the metric's name."""


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


_ENTRY = re.compile(r"  (rankwatch_\w+)(?:{(\w+)=(\w+)})?(.*)")


def _parse_table(text: str) -> Iterator[tuple[str, OtelMetric]]:
    """Yield the name of each metric with a standard name, and the standard metric. Raises ValueError."""
    for line in text.splitlines():
        if not line or line.lstrip().startswith("#"):
            continue
        if not line.startswith(" "):
            name, instrument, unit, description = line.split(" ", 3)
            continue
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ValueError(f"this line names no metric: {line}")
        attributes, constants = {}, {}
        for word in match[4].split():
            attribute, _, value = word.rpartition("=")
            if value.startswith("<"):
                labels = tuple(Label(each) for each in value[1:-1].split("/"))
                attributes[attribute or f"rankwatch.{labels[0]}"] = labels
            else:
                constants[attribute] = value
        yield (
            match[1],
            OtelMetric(
                name=name,
                instrument=Instrument(instrument),
                unit=unit,
                description=description,
                attributes=attributes,
                constants=constants,
                only={Label(match[2]): match[3]} if match[2] else {},
            ),
        )


STANDARD: Mapping[str, OtelMetric] = MappingProxyType(
    dict(_parse_table(Path(__file__).with_name("opentelemetry.txt").read_text()))
)
"""Prometheus name -> standard metric, where the conventions have one that means the same."""
