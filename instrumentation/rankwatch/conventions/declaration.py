"""How metrics are declared: type, unit, labels and help, each written once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rankwatch.conventions.labels import Label


class Kind(StrEnum):
    """Prometheus metric type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"
    """A gauge that is always 1 and carries its content in labels."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric: the only place its name, type, unit, labels and help are written."""

    name: str
    """Full exposition name, with `_total` on counters."""
    kind: Kind
    unit: str
    """Base unit (`seconds`, `bytes`), or `1` for pure numbers."""
    labels: tuple[Label, ...]
    """Labels beyond `cluster` and `node`."""
    help: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series."""
        suffixes = ("_bucket", "_sum", "_count") if self.kind is Kind.HISTOGRAM else ("",)
        return tuple(self.name + each for each in suffixes)


def counter(name: str, unit: str, labels: tuple[Label, ...], text: str) -> Metric:
    """A metric that only grows."""
    return Metric(name=name, kind=Kind.COUNTER, unit=unit, labels=labels, help=text)


def gauge(name: str, unit: str, labels: tuple[Label, ...], text: str) -> Metric:
    """A metric that goes up and down."""
    return Metric(name=name, kind=Kind.GAUGE, unit=unit, labels=labels, help=text)


def info(name: str, labels: tuple[Label, ...], text: str) -> Metric:
    """A metric that is always 1."""
    return Metric(name=name, kind=Kind.INFO, unit="1", labels=labels, help=text)
