"""A small real OTLP/HTTP receiver on loopback, which can also misbehave as endpoints do."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from support.agent.process import until


class Mode(Enum):
    """What the receiver does with an export."""

    ACCEPT = auto()
    UNAVAILABLE = auto()
    HANG = auto()
    """Reads the request and never answers."""
    GARBAGE = auto()
    """Answers with something that is not HTTP."""
    REDIRECT = auto()
    ENDLESS = auto()
    """Accepts, with a body that never ends."""


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


class OtlpReceiver(ThreadingHTTPServer):
    """Keeps every request. `mode` may change at any time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.exports: list[Export] = []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), _Receiving)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/metrics"

    def wait(self, count: int) -> list[Export]:
        """The exports, once there are at least `count`."""
        until(lambda: len(self.exports) >= count, f"{count} exports have arrived")
        return list(self.exports)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Some tests are about clients that break off."""


class _Receiving(BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        mode = self.server.mode
        request = ExportMetricsServiceRequest.FromString(body)
        self.server.exports.append(Export(dict(self.headers), request))
        if mode is Mode.HANG:
            self.server.released.wait()
        elif mode is Mode.GARBAGE:
            self.wfile.write(b"\x00\xff no HTTP \r\n")
        elif mode is Mode.ENDLESS:
            self._endless()
        else:
            self._answer(mode)

    def _answer(self, mode: Mode) -> None:
        body = ExportMetricsServiceResponse().SerializeToString()
        self.send_response({Mode.ACCEPT: 200, Mode.UNAVAILABLE: 503, Mode.REDIRECT: 308}[mode])
        if mode is Mode.REDIRECT:
            self.send_header("Location", "https://elsewhere.example/v1/metrics")
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.released.wait(0.001):
            self.wfile.write(b"x" * 1024)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def otlp_receiver(mode: Mode = Mode.ACCEPT) -> Iterator[OtlpReceiver]:
    """A receiver that listens for the length of the block. Exports to it must stop before its end."""
    receiver = OtlpReceiver(mode)
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        until(lambda: all(each.name != "otlp" for each in threading.enumerate()), "no export hangs any more")
        receiver.shutdown()
        receiver.server_close()
        thread.join()


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
