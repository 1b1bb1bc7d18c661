"""OpenTelemetry's own exporter, set up for the endpoint, and what we say about ourselves to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


def build_session() -> requests.Session:
    """A session for OpenTelemetry's exporter; proxies come from the environment, credentials do not."""
    session = requests.Session()
    # Nobody reads the body of an answer: it is neither waited for nor kept, whatever its length.
    session.stream = True
    session.hooks["response"].append(_end_answer)
    # Else a ~/.netrc would replace the Authorization of the headers file.
    session.auth = _same_request
    return session


def _end_answer(response: requests.Response, **_: Any) -> None:
    """Close the connection; raises HTTPError for a redirect, which the exporter takes for success."""
    response.close()
    if 300 <= response.status_code < 400:
        raise requests.HTTPError(f"status {response.status_code} leads elsewhere; give the final URL")


def _same_request(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


EXPORTER_LOGGER = logging.getLogger(OTLPMetricExporter.__module__)
"""The logger the SDK's exporter writes to."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Who speaks: the attributes of the resource."""

    node: str
    cluster: str
    """Empty where the agent is told none."""
    version: str


class Endpoint:
    """An OTLP/HTTP endpoint and the connection to it; `send` is for one thread at a time."""

    def __init__(
        self, url: str, *, headers: Mapping[str, str], timeout_seconds: float, origin: Origin
    ) -> None:
        self.headers = headers
        self._resource = _resource(origin)
        self._scope = InstrumentationScope("rankwatch", origin.version)
        self._exporter = OTLPMetricExporter(
            endpoint=url,
            headers=headers,
            timeout=timeout_seconds,
            compression=Compression.Gzip,
            session=build_session(),
        )

    def send(self, metrics: Sequence[Metric]) -> bool:
        """Whether the endpoint took the metrics, within the timeout, retries among it."""
        scope = ScopeMetrics(self._scope, metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """End a retry that waits, and the idle connection; one that hangs ends with its timeout."""
        self._exporter.shutdown()


def _resource(origin: Origin) -> Resource:
    attributes = {
        "service.name": "rankwatch-agent",
        "service.version": origin.version,
        "host.name": origin.node,
    }
    if origin.cluster:
        attributes["k8s.cluster.name"] = origin.cluster
    # create, not the constructor: it adds what OTEL_RESOURCE_ATTRIBUTES says.
    return Resource.create(attributes)


QUIET_SECONDS = 60.0
"""Least time between two messages."""


class QuietFilter(logging.Filter):
    """Lets one record through in QUIET_SECONDS; attached to the exporter's own logger only."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        now = self._monotonic()
        if now - self._last < QUIET_SECONDS:
            return False
        self._last = now
        return True
