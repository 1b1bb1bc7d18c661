"""A receiver of spans over OTLP/HTTP."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from support.servers.receiver import Mode, Receiver


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


class SpanReceiver(Receiver):
    """Keeps every span that it does not refuse."""

    path = "/v1/traces"
    answer = ExportTraceServiceResponse().SerializeToString()

    def __init__(self, mode: Mode, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.spans: list[Received] = []
        self.headers: list[dict[str, str]] = []
        super().__init__(mode, address)

    def receive(self, headers: Mapping[str, str], body: bytes, *, refused: bool) -> None:
        """Keep the spans of a request."""
        if refused:
            return
        self.headers.append({name.lower(): value for name, value in headers.items()})
        self.spans.extend(spans_of(ExportTraceServiceRequest.FromString(body)))

    def named(self, name: str) -> list[Received]:
        return [each for each in self.spans if each.name == name]


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
    """Every id occurs once, and every parent is there, in the same trace and of the same attempt."""
    ids = Counter((each.trace, each.span) for each in spans)
    assert [each for each, count in ids.items() if count > 1] == []
    missing = {each.name for each in spans if each.parent and (each.trace, each.parent) not in ids}
    assert missing == set()
    attempts = {(each.trace, each.span): each.attributes.get("rankwatch.attempt") for each in spans}
    pairs = (
        (each.name, {attempts[each.trace, each.parent], attempts[each.trace, each.span]} - {None})
        for each in spans
        if each.parent
    )
    assert {name for name, found in pairs if len(found) > 1} == set()


@contextlib.contextmanager
def span_receiver(
    mode: Mode = Mode.ACCEPT, address: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[SpanReceiver]:
    """A receiver that listens for the length of the block."""
    receiver = SpanReceiver(mode, address)
    with receiver.listening():
        yield receiver
