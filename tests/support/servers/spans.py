"""A small real OTLP/HTTP receiver of spans on loopback, which can also misbehave as receivers do."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from support.servers.otlp import Mode

STATUS = {Mode.ACCEPT: 200, Mode.UNAVAILABLE: 503, Mode.REDIRECT: 308}


class Received(NamedTuple):
    """One span as it arrived; ids are hexadecimal."""

    trace: str
    span: str
    parent: str
    """Empty for a root."""
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    failed: bool


class SpanReceiver(ThreadingHTTPServer):
    """Keeps every span. `mode` may change at any time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, mode: Mode, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.mode = mode
        self.spans: list[Received] = []
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        super().__init__(address, _Receiving)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def named(self, name: str) -> list[Received]:
        return [each for each in self.spans if each.name == name]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Some tests are about clients that break off."""


class _Receiving(BaseHTTPRequestHandler):
    server: SpanReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        mode = self.server.mode
        self.server.requests += 1
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        if mode is Mode.HANG:  # it has the spans, and nobody hears of it
            self.server.spans.extend(spans_of(ExportTraceServiceRequest.FromString(body)))
            self.server.released.wait()
        elif mode is Mode.GARBAGE:
            self.wfile.write(b"\x00\xff no HTTP \r\n")
        else:
            self._answer(mode, body)

    def _answer(self, mode: Mode, request: bytes) -> None:
        if mode is Mode.ACCEPT:
            self.server.spans.extend(spans_of(ExportTraceServiceRequest.FromString(request)))
        body = ExportTraceServiceResponse().SerializeToString()
        self.send_response(STATUS[mode])
        if mode is Mode.REDIRECT:
            self.send_header("Location", "https://elsewhere.example/v1/traces")
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def spans_of(request: ExportTraceServiceRequest) -> list[Received]:
    """The spans of one request."""
    return [
        Received(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            {each.key: _value(each.value) for each in span.attributes},
            tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            span.status.code == 2,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def check_traces(spans: list[Received]) -> None:
    """Every id occurs once, and every parent is there, in the same trace."""
    ids = Counter((each.trace, each.span) for each in spans)
    assert [each for each, count in ids.items() if count > 1] == []
    missing = {each.name for each in spans if each.parent and (each.trace, each.parent) not in ids}
    assert missing == set()


@contextlib.contextmanager
def span_receiver(
    mode: Mode = Mode.ACCEPT, address: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[SpanReceiver]:
    """A receiver that listens for the length of the block."""
    receiver = SpanReceiver(mode, address)
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        receiver.shutdown()
        receiver.server_close()
        thread.join()
