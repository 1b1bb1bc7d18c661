"""Sends spans over OTLP/HTTP, or writes them to a file for the Collector's otlpjsonfile receiver.

Those who make spans never wait for the thread that sends them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
from collections.abc import Sequence
from enum import Enum, auto
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import requests
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, SSLError

from rankwatch import __version__
from rankwatch.conventions.traces import Attribute, SpanName
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.otlp_endpoint import (
    DeadlineAdapter,
    OtlpSettings,
    QuietFilter,
    build_session,
    settings_of,
)
from rankwatch_agent.runtime.reread import headers_source
from rankwatch_spans.queue import SpanQueue, TraceSpan

logger = logging.getLogger(__name__)

MAX_BATCH = 512
_PAUSE_SECONDS = 1.0
_GATHER_SECONDS = 5.0
"""As OpenTelemetry's batch processor: each batch costs a connection."""
_RETRY_SECONDS = 5.0
_MOST_PAUSE_SECONDS = 300.0
"""However long a receiver asks to be left alone."""
_EXPORTER_LOGGER = logging.getLogger(OTLPSpanExporter.__module__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {SpanName.RUN.value: SpanKind.SERVER}
"""As in the CI/CD conventions; all other spans are internal."""


class Outcome(Enum):
    """What became of a batch."""

    SENT = auto()
    REFUSED = auto()
    """The receiver does not have it: it may be sent again."""
    TOO_LARGE = auto()
    """As above, and the receiver wants smaller ones."""
    LOST = auto()
    """The receiver may have it, and to send it again could give it every span twice. Or it never takes it."""


_OUTCOMES = {
    400: Outcome.LOST,
    422: Outcome.LOST,
    413: Outcome.TOO_LARGE,
}
"""Of a failure, by status; any other one is of the receiver and not of the batch, so that it comes again."""


class SpanSink(Protocol):
    """Takes batches of spans. One thread calls it."""

    @property
    def pause_seconds(self) -> float:
        """How long the receiver asked to be left alone, in its last answer."""
        ...

    def send(self, spans: Sequence[ReadableSpan]) -> Outcome:
        """Hand over a batch; never raises."""
        ...

    def close(self) -> None:
        """End a call of `send` soon."""
        ...


class SpanSender:
    """Empties the queue into the sinks.

    A batch that a receiver refused is kept, as far as the queue has room, and sent again later. The thread
    is a daemon: a receiver that hangs does not keep the process from exiting.
    """

    def __init__(self, queue: SpanQueue, sinks: Sequence[SpanSink], resource: Resource) -> None:
        self._queue, self._sinks, self._resource = queue, sinks, resource
        self._scope = InstrumentationScope("rankwatch", __version__)
        self._batch_size = MAX_BATCH
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-spans", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Send what is left, as far as the time goes."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        for sink in self._sinks:
            sink.close()

    def _run(self) -> None:
        quiet = QuietFilter()
        _EXPORTER_LOGGER.addFilter(quiet)
        try:
            while not self._stopping.is_set():
                if not self._queue.wait(_PAUSE_SECONDS):
                    continue
                if len(self._queue) < self._batch_size:
                    self._stopping.wait(_GATHER_SECONDS)
                if not self._send_batch():
                    asked = min(_MOST_PAUSE_SECONDS, *(sink.pause_seconds for sink in self._sinks))
                    self._stopping.wait(max(_RETRY_SECONDS, asked))
            while len(self._queue) and self._send_batch():
                pass
        finally:
            _EXPORTER_LOGGER.removeFilter(quiet)

    def _send_batch(self) -> bool:
        """Send one batch; False if it failed."""
        batch = self._queue.take(self._batch_size)
        if not batch:
            return True
        spans = [as_sdk_span(each, self._resource, self._scope) for each in batch]
        outcomes = {sink.send(spans) for sink in self._sinks}
        if outcomes == {Outcome.SENT}:
            self._queue.count(sent=len(batch))
            self._batch_size = min(MAX_BATCH, 2 * self._batch_size)
            return True
        too_large = Outcome.TOO_LARGE in outcomes
        if too_large:
            self._batch_size = max(1, len(batch) // 2)
        # With two sinks, one of which has it, a second try would give it every span twice.
        if outcomes == {Outcome.REFUSED} or (outcomes == {Outcome.TOO_LARGE} and len(batch) > 1):
            self._queue.give_back(batch)
        else:
            self._queue.count(dropped=len(batch))
        return too_large


def build_sender(config: AgentConfig, queue: SpanQueue) -> SpanSender:
    """Return what empties the queue, as the settings of the agent say."""
    settings, resource = settings_of(config, config.traces_endpoint)
    sinks: list[SpanSink] = []
    if config.traces_endpoint:
        sinks.append(OtlpSpans(settings))
    if config.traces_file is not None:
        sinks.append(SpanFile(config.traces_file, config.traces_file_bytes))
    return SpanSender(queue, sinks, resource)


def as_sdk_span(span: TraceSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """Return the span in the SDK's terms."""
    failed = (
        Status(StatusCode.ERROR, span.error or None) if span.error is not None else Status(StatusCode.UNSET)
    )
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace, span.span),
        parent=_context(span.trace, span.parent) if span.parent else None,
        resource=resource,
        attributes=dict(span.attributes),
        links=[Link(_context(each.trace, each.span), {Attribute.LINK.value: each.to}) for each in span.links],
        events=[Event(each.name, dict(each.attributes), each.moment) for each in span.events],
        kind=_KINDS.get(span.name, SpanKind.INTERNAL),
        status=failed,
        start_time=max(0, span.start),
        end_time=max(0, span.start, span.end),
        instrumentation_scope=scope,
    )


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=_SAMPLED)


class OtlpSpans:
    """Sends batches to an OTLP/HTTP endpoint, with the settings of the metrics."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._current_headers = headers_source(settings.headers_file)
        self._headers = self._current_headers()
        self._adapter = _Attempts()
        self._exporter = self._connect()
        self._log_limit = LogLimit()

    @property
    def pause_seconds(self) -> float:
        """As the receiver's Retry-After says."""
        return self._adapter.retry_after

    def send(self, spans: Sequence[ReadableSpan]) -> Outcome:
        """Send one batch, within the timeout."""
        if (headers := self._current_headers()) != self._headers:
            self._headers = headers
            previous, self._exporter = self._exporter, self._connect()
            previous.shutdown()  # type: ignore[no-untyped-call]
        self._adapter.begin()
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return Outcome.SENT
        if self._log_limit.allows("failed"):
            # The address without user name and password.
            host = urlsplit(self._settings.endpoint).netloc.rpartition("@")[2]
            logger.warning("could not send spans over OTLP to %s: %s", host, self._adapter.problem)
        return self._adapter.outcome

    def close(self) -> None:
        """End a waiting retry and the idle connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _connect(self) -> OTLPSpanExporter:
        self._adapter = _Attempts()
        return OTLPSpanExporter(
            endpoint=self._settings.endpoint,
            headers=dict(self._headers),
            timeout=self._settings.timeout_seconds,
            compression=Compression.Gzip,
            session=build_session(self._adapter),
        )


class _Attempts(DeadlineAdapter):
    """Notes what became of a batch: the exporter says only that it failed.

    The exporter tries again after any broken connection. This lets it do so only where none was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Begin another batch."""
        self.outcome = Outcome.LOST
        """If it fails. What was never asked for could not be encoded."""
        self.problem = "it could not be encoded"
        self.retry_after = 0.0

    def send(self, *args: object, **options: object) -> requests.Response:
        """Send one request."""
        try:
            response = super().send(*args, **options)  # type: ignore[arg-type]
        except requests.ConnectionError as error:
            reason = getattr(error.args[0] if error.args else None, "reason", None)
            self.problem = str(reason or error)
            if isinstance(reason, NewConnectionError | ConnectTimeoutError):
                self.outcome = Outcome.REFUSED
                raise
            untrusted = isinstance(reason, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(reason)
            self.outcome = Outcome.REFUSED if untrusted else Outcome.LOST
            raise requests.RequestException(f"the connection broke off: {error}") from error
        except requests.Timeout as error:
            self.outcome, self.problem = Outcome.LOST, str(error)
            raise
        self._note_answer(response)
        return response

    def _note_answer(self, response: requests.Response) -> None:
        status = response.status_code
        self.outcome = _OUTCOMES.get(status, Outcome.REFUSED)
        self.problem = f"it answers with status {status}"
        if status == HTTPStatus.NOT_FOUND:
            self.problem += "; does the address lack /v1/traces?"
        elif 300 <= status < 400:
            self.problem += ", a redirect; set the final address"
        with contextlib.suppress(ValueError):  # a date, which no receiver is known to send
            self.retry_after = max(0.0, float(response.headers.get("Retry-After", "0")))


_IDS = ("traceId", "spanId", "parentSpanId")


class SpanFile:
    """Appends batches to `path`.

    A full file becomes `path` with `.1` at its end and replaces the one before. Both together never take more
    than `max_bytes`.
    """

    pause_seconds = 0.0

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes // 2
        self._log_limit = LogLimit()

    def send(self, spans: Sequence[ReadableSpan]) -> Outcome:
        """Append one batch."""
        line = json_line(spans)
        if len(line) > self._max_bytes:
            return Outcome.LOST
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._rotate(len(line))
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as error:
            if self._log_limit.allows("write"):
                logger.warning("could not write spans to %s: %s", self._path, error.strerror)
            return Outcome.LOST  # a part of the line may be in the file
        return Outcome.SENT

    def close(self) -> None:
        """Do nothing: between two batches nothing is open."""

    def _rotate(self, more: int) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size + more > self._max_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))


def json_line(spans: Sequence[ReadableSpan]) -> bytes:
    """Return the spans as a line of OTLP's JSON, in which ids are hexadecimal, not base64 as in
    protobuf's."""
    request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    for resource in request.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                _write_ids(span)
                for link in span.get("links", ()):
                    _write_ids(link)
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"


def _write_ids(holder: dict[str, Any]) -> None:
    for name in _IDS:
        if name in holder:
            holder[name] = base64.b64decode(holder[name]).hex()
