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
"""Points in one batch: a few megabytes before compression, below the limits receivers set."""

_Sample = Series | Histogram


class Span(NamedTuple):
    """From when to when sums count, in nanoseconds of Unix time."""

    start: int
    end: int


class _Group(NamedTuple):
    """The samples of one metric, each with the terms it goes by: attributes differ among them."""

    terms: OtelMetric
    samples: list[tuple[OtelMetric, _Sample]]


def metric_batches(
    collections: Iterable[Collection], span: Span, max_points: int = MAX_POINTS
) -> Iterator[list[Metric]]:
    """Every point once, no batch with more than `max_points`; a batch is built when it is asked for.

    Of two samples of a metric with the same labels the first is kept, as in the exposition.
    """
    batch: list[Metric] = []
    room = max_points
    for terms, samples in _groups(collections):
        start = 0
        while start < len(samples):
            taken = samples[start : start + room]
            batch.append(_metric(terms, taken, span))
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
            identity = (sample.metric.name, sample.labels)
            if identity not in seen:
                seen.add(identity)
                terms = otel_metric(sample.metric, sample.labels)
                groups.setdefault(terms.name, _Group(terms, [])).samples.append((terms, sample))
    return groups.values()


def _metric(terms: OtelMetric, samples: Sequence[tuple[OtelMetric, _Sample]], span: Span) -> Metric:
    cumulative = AggregationTemporality.CUMULATIVE
    data: Gauge | Sum | OtelHistogram
    if terms.instrument is Instrument.HISTOGRAM:
        histograms = [
            _histogram_point(each, sample, span) for each, sample in samples if isinstance(sample, Histogram)
        ]
        data = OtelHistogram(histograms, cumulative)
    else:
        numbers = [
            _number_point(each, sample, span) for each, sample in samples if isinstance(sample, Series)
        ]
        if terms.instrument is Instrument.GAUGE:
            data = Gauge(numbers)
        else:
            data = Sum(numbers, cumulative, is_monotonic=terms.instrument is Instrument.COUNTER)
    return Metric(terms.name, terms.description, terms.unit, data)


def _number_point(terms: OtelMetric, series: Series, span: Span) -> NumberDataPoint:
    return NumberDataPoint(_attributes(terms, series), span.start, span.end, _float(series.value))


def _histogram_point(terms: OtelMetric, histogram: Histogram, span: Span) -> HistogramDataPoint:
    """Counts of single buckets out of cumulative ones; the last bound, +Inf, goes without saying."""
    counts = [count for _, count in histogram.buckets]
    return HistogramDataPoint(
        attributes=_attributes(terms, histogram),
        start_time_unix_nano=span.start,
        time_unix_nano=span.end,
        count=counts[-1],
        sum=_float(histogram.sum),
        bucket_counts=[count - below for count, below in zip(counts, [0, *counts], strict=False)],
        explicit_bounds=[bound for bound, _ in histogram.buckets[:-1]],
        # Optional in OTLP and not known here; the SDK's type does not say so.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )


def _attributes(terms: OtelMetric, sample: _Sample) -> dict[str, str]:
    """Attributes of a point; as in Prometheus, a label with an empty value is as good as none."""
    values = dict(zip(sample.metric.labels, sample.labels, strict=True))
    found = dict(terms.constants)
    for attribute, labels in terms.attributes.items():
        value = "/".join(fit_label_value(values[label]) for label in labels if values[label])
        if value:
            found[attribute] = value
    return found


def _float(value: float) -> float:
    """A whole number too, since OTLP has 64 bits for those and Python any number of them."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
