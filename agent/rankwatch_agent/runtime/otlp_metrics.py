"""Sends a snapshot over OTLP at every interval, in batches of bounded size, and drops what it cannot send."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram
from opentelemetry.sdk.resources import Resource

from rankwatch.conventions.opentelemetry import Instrument, OtelMetric, otel_metric
from rankwatch_agent.runtime.collector import Collection, Histogram, Series, sample
from rankwatch_agent.runtime.exposition import fit_label_value
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.otlp_endpoint import (
    EXPORTER_LOGGER,
    MAX_POINTS,
    Endpoint,
    OtlpSettings,
    QuietFilter,
)
from rankwatch_agent.runtime.reread import headers_source
from rankwatch_agent.runtime.supervisor import Snapshot, next_start

logger = logging.getLogger(__name__)

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
    """Yield every point once, at most `max_points` in a batch. A batch is built when it is asked for.

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
        for each in samples:
            identity = (each.metric.name, tuple(map(fit_label_value, each.labels)))
            if identity not in seen:
                seen.add(identity)
                terms = otel_metric(each.metric, each.labels)
                groups.setdefault(terms.name, _Group(terms, [])).samples.append((terms, each))
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
            NumberDataPoint(_attributes(each, series), time_range.start, time_range.end, _float(series.value))
            for each, series in samples
            if isinstance(series, Series)
        ]
        if terms.instrument is Instrument.GAUGE:
            data = Gauge(numbers)
        else:
            data = Sum(numbers, cumulative, is_monotonic=terms.instrument is Instrument.COUNTER)
    return Metric(terms.name, terms.description, terms.unit, data)


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
    """Return the attributes of a point. As in Prometheus, a label with an empty value counts as absent."""
    values = dict(zip(sample.metric.labels, sample.labels, strict=True))
    found = dict(terms.constants)
    for attribute, labels in terms.attributes.items():
        value = "/".join(fit_label_value(values[label]) for label in labels if values[label])
        if value:
            found[attribute] = value
    return found


def _float(value: float) -> float:
    """Convert to a float, because whole numbers of OTLP have 64 bits and those of Python have no limit."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class BatchOutcome(StrEnum):
    """What happened to a batch."""

    SENT = "sent"
    DROPPED = "dropped"


class OtlpExport:
    """Sends the snapshots, one export at a time. Nothing queues up behind a slow endpoint.

    The thread is a daemon: an endpoint that hangs does not keep the process from exiting. Raises
    UserError for a file of headers that cannot be used; the file is read again when it changes.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], settings: OtlpSettings, resource: Resource) -> None:
        self._collected = snapshot
        self._settings = settings
        self._resource = resource
        self._headers = headers_source(settings.headers_file)
        self._endpoint = self._connect(self._headers())
        self._lock = threading.Lock()
        # Every outcome starts at 0: rate() needs a sample before the first failure.
        self._batches = dict.fromkeys(BatchOutcome, 0)
        self._last_success: float | None = None
        self._quiet = QuietFilter()
        self._log_limit = LogLimit()
        self._started = time.time_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_until_stopped, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread. The first export follows after one interval."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread. Waits at most `timeout_seconds` for an export that hangs."""
        self._stopping.set()
        self._endpoint.close()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def snapshot(self) -> Snapshot:
        """Return the snapshot with the counters of the export, for scrapes as well."""
        collected = self._collected()
        with self._lock:
            series = [
                sample("rankwatch_otlp_batches_total", (outcome.value,), count)
                for outcome, count in self._batches.items()
            ]
            if self._last_success is not None:
                series.append(sample("rankwatch_otlp_last_success_timestamp_seconds", (), self._last_success))
        return replace(collected, collections=(*collected.collections, Collection(tuple(series))))

    def _run_until_stopped(self) -> None:
        first = time.monotonic()
        EXPORTER_LOGGER.addFilter(self._quiet)
        try:
            while not self._stopping.wait(self._until_next(first)):
                self._export()
        finally:
            EXPORTER_LOGGER.removeFilter(self._quiet)

    def _until_next(self, first: float) -> float:
        now = time.monotonic()
        return next_start(first, self._settings.interval_seconds, now) - now

    def _export(self) -> None:
        headers = self._headers()
        if headers != self._endpoint.headers:
            previous, self._endpoint = self._endpoint, self._connect(headers)
            previous.close()
        time_range = TimeRange(self._started, time.time_ns())
        failed = False
        for batch in metric_batches(self.snapshot().collections, time_range, self._settings.max_points):
            if self._stopping.is_set():
                return
            # After one failure the rest would most likely fail too, each after its timeout.
            failed = failed or not self._endpoint.send(batch)
            with self._lock:
                self._batches[BatchOutcome.DROPPED if failed else BatchOutcome.SENT] += 1
                self._last_success = self._last_success if failed else time.time()
        if failed and not self._stopping.is_set() and self._log_limit.allows("failed"):
            # The address without user name and password.
            host = urlsplit(self._settings.endpoint).netloc.rpartition("@")[2]
            logger.warning("could not send metrics over OTLP to %s; unsent metrics are dropped", host)

    def _connect(self, headers: Mapping[str, str]) -> Endpoint:
        return Endpoint(
            self._settings.endpoint,
            headers=headers,
            timeout_seconds=self._settings.timeout_seconds,
            resource=self._resource,
        )
