"""Samples of a snapshot grouped by metric, in the terms of OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rankwatch.conventions import Kind, Metric
from rankwatch_agent.runtime.collector import Collection, Histogram
from rankwatch_agent.runtime.export.number import format_number


class Point(NamedTuple):
    """One line: suffix of the sample's name, label values, value."""

    suffix: str
    labels: tuple[str, ...]
    value: float


class Family(NamedTuple):
    """A metric family; counters and infos are named without the suffix of their samples."""

    name: str
    type: str
    unit: str
    """Empty, or the unit the name ends in: OpenMetrics allows no other."""
    help: str
    labels: tuple[str, ...]
    points: list[Point]


_SUFFIXES = {Kind.COUNTER: "_total", Kind.INFO: "_info"}


def families(collections: Iterable[Collection]) -> Iterable[Family]:
    """Every family once, in order of first appearance, with the points of all collectors."""
    found: dict[str, Family] = {}
    for collection in collections:
        for metric, labels, value in collection.series:
            family = found.get(metric.name) or found.setdefault(metric.name, _family(metric))
            family.points.append(Point(_SUFFIXES.get(metric.kind, ""), labels, value))
        for histogram in collection.histograms:
            metric = histogram.metric
            family = found.get(metric.name) or found.setdefault(metric.name, _family(metric))
            family.points.extend(_histogram_points(histogram))
    return found.values()


def _family(metric: Metric) -> Family:
    name = metric.name.removesuffix(_SUFFIXES.get(metric.kind, ""))
    unit = metric.unit if name.endswith(f"_{metric.unit}") else ""
    labels = tuple(label.value for label in metric.labels)
    return Family(name, metric.kind.value, unit, metric.help, labels, [])


def _histogram_points(histogram: Histogram) -> Iterable[Point]:
    """Cumulative buckets, their bound as one more label value, then count and sum."""
    labels = histogram.labels
    for bound, count in histogram.buckets:
        yield Point("_bucket", (*labels, format_number(bound)), count)
    yield Point("_count", labels, histogram.buckets[-1][1])
    yield Point("_sum", labels, histogram.sum)
