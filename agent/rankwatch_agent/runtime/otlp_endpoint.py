"""OpenTelemetry's exporter for one endpoint, its settings, and the resource that names this agent.

The modules `otlp_...` are imported only if an endpoint is set, because the SDK takes memory.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    Metric,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rankwatch import __version__
from rankwatch_agent.runtime.config import AgentConfig

EXPORTER_LOGGER = logging.getLogger(OTLPMetricExporter.__module__)
"""The logger of the SDK's exporter."""
QUIET_SECONDS = 60.0
"""Least time between two messages of the SDK's exporter."""
MAX_POINTS = 5000
"""Points in one batch: a few megabytes before compression, below the limits of receivers."""


@dataclass(frozen=True, kw_only=True)
class OtlpSettings:
    """Where to send, how often, and with which headers."""

    endpoint: str
    interval_seconds: float
    timeout_seconds: float
    """Longest time for one batch. After it, the rest of the export is dropped."""
    headers_file: Path | None = None
    max_points: int = MAX_POINTS


class Endpoint:
    """An OTLP/HTTP endpoint and the connection to it. One thread at a time may call `send`."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str], timeout_seconds: float, resource: Resource
    ) -> None:
        self.headers = headers
        self._resource = resource
        self._scope = InstrumentationScope("rankwatch", __version__)
        self._exporter = OTLPMetricExporter(
            endpoint=url,
            headers=headers,
            timeout=timeout_seconds,
            compression=Compression.Gzip,
            session=build_session(),
        )

    def send(self, metrics: Sequence[Metric]) -> bool:
        """Return True if the endpoint accepts the metrics within the timeout, which includes retries."""
        scope = ScopeMetrics(self._scope, metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """End a waiting retry and the idle connection. A connection that hangs ends with its timeout."""
        self._exporter.shutdown()


def settings_of(config: AgentConfig, endpoint: str) -> tuple[OtlpSettings, Resource]:
    """Return what the settings of the agent say for an endpoint, and the resource that names the agent."""
    settings = OtlpSettings(
        endpoint=endpoint,
        interval_seconds=config.otlp_interval_seconds,
        timeout_seconds=config.otlp_timeout_seconds,
        headers_file=config.otlp_headers_file,
    )
    return settings, build_resource(node=config.node, cluster=config.cluster, version=__version__)


def build_resource(*, node: str, cluster: str, version: str) -> Resource:
    """Return the attributes of the agent that sends. An empty `cluster` is left out."""
    attributes = {
        "service.name": "rankwatch-agent",
        "service.version": version,
        "host.name": node,
    }
    if cluster:
        attributes["k8s.cluster.name"] = cluster
    # create, not the constructor: it adds the attributes of OTEL_RESOURCE_ATTRIBUTES.
    return Resource.create(attributes)


def build_session(adapter: DeadlineAdapter | None = None) -> requests.Session:
    """Return an HTTP session for the exporter. Proxies come from the environment, credentials do not.

    It trusts neither the length of a response, nor its pace, nor a redirect.
    """
    session = requests.Session()
    adapter = adapter or DeadlineAdapter()
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    # The body of a response is never read, so it is neither awaited nor kept, whatever its length.
    session.stream = True
    session.hooks["response"].append(_end_response)
    # Without this, a ~/.netrc replaces the Authorization of the headers file.
    session.auth = lambda request: request
    return session


class DeadlineAdapter(requests.adapters.HTTPAdapter):
    """Cuts a connection whose answer has not begun within the timeout.

    The timeout of a socket is that of one read: a receiver that sends a byte a second never meets it.
    """

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return the pool of connections for a request."""
        pool = super().get_connection_with_tls_context(*args, **options)
        if not issubclass(pool.ConnectionCls, _Cut):
            kind = type(pool.ConnectionCls.__name__, (_Cut, pool.ConnectionCls), {})
            pool.ConnectionCls = kind
        return pool


class _Cut:
    """In front of a class of connections."""

    timeout: float
    sock: socket.socket | None

    def getresponse(self) -> Any:
        too_late = threading.Event()
        late = threading.Timer(self.timeout, self._cut, (too_late,))
        late.daemon = True
        late.start()
        try:
            response = super().getresponse()  # type: ignore[misc]
            if too_late.is_set():  # the half of a header was taken for the whole
                response.close()
                raise TimeoutError(f"no answer within {self.timeout:.1f} s")
            return response
        finally:
            late.cancel()

    def _cut(self, happened: threading.Event) -> None:
        happened.set()
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


def _end_response(response: requests.Response, **_: Any) -> None:
    """Close the connection. Raises HTTPError for a redirect, which the exporter takes for success."""
    response.close()
    if 300 <= response.status_code < 400:
        raise requests.HTTPError(f"status {response.status_code} is a redirect; set the final URL")


class QuietFilter(logging.Filter):
    """Passes one record in QUIET_SECONDS: the SDK's exporter logs every failure."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be logged."""
        now = self._monotonic()
        if now - self._last < QUIET_SECONDS:
            return False
        self._last = now
        return True
