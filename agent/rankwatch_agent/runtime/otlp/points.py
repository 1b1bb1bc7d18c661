"""Series of a snapshot as metrics of OpenTelemetry's SDK, in batches of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram

from rankwatch.conventions.opentelemetry import Instrument, OtelMetric, otel_metric
from rankwatch_agent.runtime.collector import Collection, Histogram, Series
from rankwatch_agent.runtime.exposition import fit_label_value

MAX_POINTS = 5000
"""Points in one batch: a few megabytes before compression, below the limits of receivers."""

_Sample = Series | Histogram


class TimeRange(NamedTuple):
    """The time over which sums count, in nanoseconds of Unix time."""

    start: int
    end: int


class _Group(NamedTuple):
    """The samples of one metric, each with its OpenTelemetry terms: attributes differ between samples."""

    terms: OtelMetric
    samples: list[tuple[OtelMetric, _Sample]]


def metric_batches(
    collections: Iterable[Collection], time_range: TimeRange, max_points: int = MAX_POINTS
) -> Iterator[list[Metric]]:
    """Every point once, at most `max_points` in a batch. A batch is built when it is asked for.

    Of two samples of a metric with the same labels, once these are fit to be shown, the first is kept, as in
    the exposition: a receiver that finds the second in another batch refuses all of that one.
    """
    batch: list[Metric] = []
    room = max_points
    for terms, samples in _groups(collections):
        start = 0
        while start < len(samples):
            taken = samples[start : start + room]
            batch.append(_metric(terms, taken, time_range))
            start += len(taken)
            room -= len(taken)
            if not room:
                yield batch
                batch, room = [], max_points
    if batch:
        yield batch


def _groups(collections: Iterable[Collection]) -> Iterable[_Group]:
    groups: dict[str, _Group] = {}
    seen = set()
    for collection in collections:
        samples: tuple[_Sample, ...] = (*collection.series, *collection.histograms)
        for sample in samples:
            identity = (sample.metric.name, tuple(map(fit_label_value, sample.labels)))
            if identity not in seen:
                seen.add(identity)
                terms = otel_metric(sample.metric, sample.labels)
                groups.setdefault(terms.name, _Group(terms, [])).samples.append((terms, sample))
    return groups.values()


def _metric(
    terms: OtelMetric, samples: Sequence[tuple[OtelMetric, _Sample]], time_range: TimeRange
) -> Metric:
    cumulative = AggregationTemporality.CUMULATIVE
    data: Gauge | Sum | OtelHistogram
    if terms.instrument is Instrument.HISTOGRAM:
        histograms = [
            _histogram_point(each, sample, time_range)
            for each, sample in samples
            if isinstance(sample, Histogram)
        ]
        data = OtelHistogram(histograms, cumulative)
    else:
        numbers = [
            _number_point(each, sample, time_range) for each, sample in samples if isinstance(sample, Series)
        ]
        if terms.instrument is Instrument.GAUGE:
            data = Gauge(numbers)
        else:
            data = Sum(numbers, cumulative, is_monotonic=terms.instrument is Instrument.COUNTER)
    return Metric(terms.name, terms.description, terms.unit, data)


def _number_point(terms: OtelMetric, series: Series, time_range: TimeRange) -> NumberDataPoint:
    return NumberDataPoint(_attributes(terms, series), time_range.start, time_range.end, _float(series.value))


def _histogram_point(terms: OtelMetric, histogram: Histogram, time_range: TimeRange) -> HistogramDataPoint:
    """Turn cumulative buckets into single ones. OTLP leaves out the last bound, +Inf."""
    counts = [count for _, count in histogram.buckets]
    return HistogramDataPoint(
        attributes=_attributes(terms, histogram),
        start_time_unix_nano=time_range.start,
        time_unix_nano=time_range.end,
        count=counts[-1],
        sum=_float(histogram.sum),
        bucket_counts=[count - below for count, below in zip(counts, [0, *counts], strict=False)],
        explicit_bounds=[bound for bound, _ in histogram.buckets[:-1]],
        # Optional in OTLP and unknown here, which the SDK's types do not allow.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )


def _attributes(terms: OtelMetric, sample: _Sample) -> dict[str, str]:
    """Attributes of a point. As in Prometheus, a label with an empty value counts as absent."""
    values = dict(zip(sample.metric.labels, sample.labels, strict=True))
    found = dict(terms.constants)
    for attribute, labels in terms.attributes.items():
        value = "/".join(fit_label_value(values[label]) for label in labels if values[label])
        if value:
            found[attribute] = value
    return found


def _float(value: float) -> float:
    """As a float, because whole numbers of OTLP have 64 bits and those of Python have no limit."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
