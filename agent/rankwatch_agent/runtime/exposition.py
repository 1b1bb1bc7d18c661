"""Renders a snapshot for a scrape, in the format and compression that the scraper asks for.

Each line is encoded by prometheus_client once; all of it but the value is remembered. Between two scrapes
of a training node few series come or go, and most of the cost of a scrape is to escape and join the same
labels again: 700 series took 11 ms in the OpenMetrics encoder, and take less than 2 ms this way.
"""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import NamedTuple

from prometheus_client import Metric as PrometheusMetric
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector as PrometheusCollector
from prometheus_client.utils import floatToGoString

from rankwatch.conventions.metrics import Kind, Label, Metric
from rankwatch.identity import span_text, trace_text
from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.collector import Collection, Exemplar, Histogram
from rankwatch_agent.runtime.server import Page
from rankwatch_agent.runtime.supervisor import Snapshot

MAX_FORMATS = 4
"""Formats whose lines are remembered. A scraper may name any version, so there could be more."""
MAX_BYTES = 256
"""Longest label value in UTF-8 bytes. The `label_value_length_limit` of Prometheus is commonly 2 kB."""

_GZIP_LEVEL = 1
"""Higher levels cost several times the CPU for a tenth of the size."""
_SHARED_FOR = 5.0
"""How long a reply is given again, as a multiple of the time it took to render."""
_SPARE_LINES = 1000
"""Lines remembered beyond twice those in use, before all are forgotten. Bounds memory."""
_SUFFIXES = {Kind.COUNTER: "_total", Kind.INFO: "_info"}

Encoder = Callable[[PrometheusCollector], bytes]
_Key = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _SharedReply:
    """The last reply in one format."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reply: Page | None = None
    until: float = 0.0
    """When it is too old, monotonic."""


class Exposition:
    """Renders snapshots in the format a scraper asks for. `render` may be called from any thread."""

    def __init__(
        self, constant_labels: Mapping[str, str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._constant_labels = constant_labels
        self._monotonic = monotonic
        self._shared: dict[tuple[str, bool], _SharedReply] = {}
        self._process = ProcessCollector(registry=None)
        """The `process_*` metrics of the agent itself."""
        self._lock = threading.Lock()
        self._encoders: dict[str, LineEncoder] = {}

    def serve(self, snapshot: Callable[[], Snapshot], headers: Message) -> Page:
        """Render for the headers of a request. Clients that ask at about the same time share a reply.

        So that they cannot keep the agent busy, a reply is given again for some multiple of the time it took.
        """
        accept, accept_encoding = headers.get("Accept", ""), headers.get("Accept-Encoding", "")
        _, content_type = self._encoder(accept)
        key = content_type, gzip_accepted(accept_encoding)
        with self._lock:
            if key not in self._shared and len(self._shared) >= 2 * MAX_FORMATS:
                self._shared.clear()
            shared = self._shared.setdefault(key, _SharedReply())
        with shared.lock:
            began = self._monotonic()
            if shared.reply is None or began >= shared.until:
                shared.reply = self.render(snapshot(), accept=accept, accept_encoding=accept_encoding)
                ended = self._monotonic()
                shared.until = ended + _SHARED_FOR * (ended - began)
            return shared.reply

    def render(self, snapshot: Snapshot, *, accept: str, accept_encoding: str) -> Page:
        """Return the snapshot for these Accept and Accept-Encoding headers; empty for absent ones."""
        encoder, content_type = self._encoder(accept)
        body = encoder.encode(
            [*families(snapshot.collections), *map(_process_family, self._process.collect())]
        )
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(accept_encoding):
            body = gzip.compress(body, _GZIP_LEVEL)
            headers["Content-Encoding"] = "gzip"
        return Page(HTTPStatus.OK, body, headers)

    def _encoder(self, accept: str) -> tuple[LineEncoder, str]:
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version such as "1.x" cannot be compared with 1.0.0
            encode, content_type = choose_encoder("")
        if not content_type.isascii() or len(content_type) > 200:
            encode, content_type = choose_encoder("")
        with self._lock:
            known = self._encoders.get(content_type)
            if known is None:
                if len(self._encoders) >= MAX_FORMATS:
                    self._encoders.clear()
                known = self._encoders[content_type] = LineEncoder(encode, self._constant_labels)
        return known, content_type


def constant_labels(*, node: str, cluster: str) -> dict[str, str]:
    """Return the labels of every series: the node, and the cluster if it is known."""
    labels = {Label.NODE.value: node}
    if cluster:
        labels[Label.CLUSTER.value] = cluster
    return labels


class LineEncoder:
    """One exposition format. `encode` may be called from any thread."""

    def __init__(self, encoder: Encoder, constant_labels: Mapping[str, str]) -> None:
        self._encoder = encoder
        self._constant = {name: fit_label_value(value) for name, value in constant_labels.items()}
        self._lock = threading.Lock()
        self._headers: dict[str, str] = {}
        self._starts: dict[_Key, str] = {}
        self._end = encoder(_Registry([])).decode()
        """`# EOF` in OpenMetrics, nothing in the text format."""

    def encode(self, families: Iterable[Family]) -> bytes:
        """Return the whole exposition. Of two points with the same labels, the first is kept."""
        parts: list[str] = []
        count = 0
        with self._lock:
            for family in families:
                self._remember(family)
                parts.append(self._headers[family.name])
                parts.extend(self._lines(family))
                count += len(family.points)
            if len(self._starts) > 2 * count + _SPARE_LINES:
                self._starts.clear()
        parts.append(self._end)
        return "".join(parts).encode()

    def _lines(self, family: Family) -> Iterable[str]:
        starts, name = self._starts, family.name
        seen = set()
        in_openmetrics = bool(self._end)
        for suffix, labels, value, exemplar in family.points:
            start = starts[name, suffix, labels]
            if start not in seen:
                seen.add(start)
                yield f"{start}{format_number(value)}{exemplar if in_openmetrics else ''}\n"

    def _remember(self, family: Family) -> None:
        """Remember the header of the family and the start of every new line."""
        starts, name = self._starts, family.name
        unknown = [point for point in family.points if (name, point.suffix, point.labels) not in starts]
        if not unknown and name in self._headers:
            return
        text = self._encoder(_Registry([self._prometheus_metric(family, unknown)])).decode()
        # Newlines in help and labels are escaped, so each newline ends a line, and nothing else does.
        lines = text.removesuffix(self._end).split("\n")[:-1]
        split = len(lines) - len(unknown)
        self._headers[name] = "".join(f"{line}\n" for line in lines[:split])
        for point, line in zip(unknown, lines[split:], strict=True):
            starts[name, point.suffix, point.labels] = line[: line.rindex(" ") + 1]

    def _prometheus_metric(self, family: Family, points: Iterable[Point]) -> PrometheusMetric:
        metric = PrometheusMetric(family.name, family.help, family.type, family.unit)
        for suffix, labels, *_ in points:
            names = (*family.labels, "le") if suffix == "_bucket" else family.labels
            values = map(fit_label_value, labels)
            metric.add_sample(
                family.name + suffix, {**self._constant, **dict(zip(names, values, strict=True))}, 0
            )
        return metric


class _Registry(PrometheusCollector):
    """Metrics in the shape that the encoders of prometheus_client take."""

    def __init__(self, metrics: Iterable[PrometheusMetric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[PrometheusMetric]:
        return self._metrics


class Point(NamedTuple):
    """One line: suffix of the sample name, label values, value."""

    suffix: str
    labels: tuple[str, ...]
    value: float
    exemplar: str = ""
    """Text that follows the value in OpenMetrics; the text format has no place for it."""


class Family(NamedTuple):
    """A metric family of OpenMetrics: the names of counters and infos lack `_total` and `_info`."""

    name: str
    type: str
    unit: str
    """Empty unless the name ends in the unit: OpenMetrics allows no other."""
    help: str
    labels: tuple[str, ...]
    points: list[Point]


def families(collections: Iterable[Collection]) -> Iterable[Family]:
    """Return each family once, in order of first appearance, with the points of all collectors."""
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
    """Yield cumulative buckets with their bound as the last label value, then count and sum."""
    labels = histogram.labels
    for number, (bound, count) in enumerate(histogram.buckets):
        exemplar = histogram.exemplars.get(number)
        text = "" if exemplar is None else _exemplar_text(exemplar)
        yield Point("_bucket", (*labels, format_number(bound)), count, text)
    yield Point("_count", labels, histogram.buckets[-1][1])
    yield Point("_sum", labels, histogram.sum)


def _exemplar_text(exemplar: Exemplar) -> str:
    """Format an exemplar. Its labels have 62 characters; OpenMetrics allows 128."""
    trace, span = trace_text(exemplar.trace), span_text(exemplar.span)
    value = format_number(exemplar.value)
    return f' # {{span_id="{span}",trace_id="{trace}"}} {value} {exemplar.moment:.3f}'


def _process_family(metric: PrometheusMetric) -> Family:
    points = [Point(each.name.removeprefix(metric.name), (), each.value) for each in metric.samples]
    return Family(metric.name, metric.type, metric.unit, metric.documentation, (), points)


def fit_label_value(value: str) -> str:
    """Return the value as valid UTF-8 of at most MAX_BYTES in which all characters are printable.

    Every exporter calls this: a black box may hold any text. NUL ends the input of Prometheus's parser, so
    that one value would cost the whole scrape, and marks of direction make one label look like another.

    A longer value keeps its beginning and ends in `~` and the CRC-32 of the whole, so that two values that
    begin alike stay two series.
    """
    if len(value) <= MAX_BYTES and value.isascii() and value.isprintable():
        return value
    encoded = printable(value).encode()
    if len(encoded) > MAX_BYTES:
        mark = f"~{zlib.crc32(value.encode('utf-8', 'surrogatepass')):08x}".encode()
        encoded = encoded[: MAX_BYTES - len(mark)] + mark
    # Drops a character that the limit cut in two.
    return encoded.decode("utf-8", "ignore")


def format_number(value: float) -> str:
    """Format a number as Go prints a float: 1.0, 2.5e-05, +Inf, NaN."""
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
