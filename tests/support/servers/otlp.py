"""A receiver of metrics over OTLP/HTTP."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from support.agent.process import until
from support.servers.receiver import Mode, Receiver


class Export(NamedTuple):
    """One request as it arrived."""

    headers: Mapping[str, str]
    request: ExportMetricsServiceRequest

    def metrics(self) -> list[Metric]:
        return [
            metric
            for resource in self.request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def resource(self) -> dict[str, str]:
        return attributes(self.request.resource_metrics[0].resource.attributes)


class OtlpReceiver(Receiver):
    """Keeps every request, those that it refuses too."""

    path = "/v1/metrics"
    answer = ExportMetricsServiceResponse().SerializeToString()

    def __init__(self, mode: Mode) -> None:
        self.exports: list[Export] = []
        super().__init__(mode)

    def receive(self, headers: Mapping[str, str], body: bytes, *, refused: bool) -> None:
        """Keep a request."""
        self.exports.append(Export(headers, ExportMetricsServiceRequest.FromString(body)))

    def wait(self, count: int) -> list[Export]:
        """The exports, once there are at least `count`."""
        until(lambda: len(self.exports) >= count, f"{count} exports have arrived")
        return list(self.exports)


@contextlib.contextmanager
def otlp_receiver(mode: Mode = Mode.ACCEPT) -> Iterator[OtlpReceiver]:
    """A receiver that listens for the length of the block. Exports to it must stop before its end."""
    receiver = OtlpReceiver(mode)
    with receiver.listening():
        try:
            yield receiver
        finally:
            receiver.released.set()
            until(
                lambda: all(each.name != "otlp" for each in threading.enumerate()), "no export hangs any more"
            )


@contextlib.contextmanager
def refusing_url() -> Iterator[str]:
    """The URL of a port that nobody listens on. It is bound, so that nobody can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1/metrics"


def attributes(pairs: Iterable[KeyValue]) -> dict[str, str]:
    """Attributes as text."""
    return {pair.key: pair.value.string_value for pair in pairs}


def numbers(metrics: Iterable[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, attributes) -> value of every point of gauges and sums."""
    found = {}
    for metric in metrics:
        points = (*metric.gauge.data_points, *metric.sum.data_points)
        for point in points:
            found[metric.name, frozenset(attributes(point.attributes).items())] = point.as_double
    return found
