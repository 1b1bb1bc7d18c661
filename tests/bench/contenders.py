"""What is compared on the hot path: rankwatch and its peers, each as a loop over one call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

from rankwatch import Run

PHASE = "rankwatch phase"
STEP = "rankwatch step"
OBSERVE = "prometheus_client Histogram.observe"
RECORD = "OpenTelemetry Histogram.record"
SPAN = "OpenTelemetry span"

_SECONDS = 0.05
"""Observed value: a phase of a step of 100 ms; in the fourth of prometheus_client's default buckets."""


class Contender(NamedTuple):
    """A name, and a loop that makes the call `count` times."""

    name: str
    loop: Callable[[int], None]


def contenders(run: Run) -> list[Contender]:
    """All five; the order is that of the table."""
    return [
        Contender(PHASE, _phase(run)),
        Contender(STEP, _step(run)),
        Contender(OBSERVE, _prometheus_observe()),
        Contender(RECORD, _opentelemetry_record()),
        Contender(SPAN, _opentelemetry_span()),
    ]


def _phase(run: Run) -> Callable[[int], None]:
    def loop(count: int) -> None:
        for _ in repeat(None, count):
            with run.phase("forward"):
                pass

    return loop


def _step(run: Run) -> Callable[[int], None]:
    def loop(count: int) -> None:
        for _ in repeat(None, count):
            with run.step():
                pass

    return loop


def _prometheus_observe() -> Callable[[int], None]:
    declared = PrometheusHistogram("phase_seconds", "Phases.", ["phase"], registry=CollectorRegistry())
    histogram = declared.labels("forward")  # looked up once: the cheapest use of the peer

    def loop(count: int) -> None:
        for _ in repeat(None, count):
            histogram.observe(_SECONDS)

    return loop


def _opentelemetry_record() -> Callable[[int], None]:
    provider = MeterProvider(metric_readers=[InMemoryMetricReader()])
    histogram = provider.get_meter("bench").create_histogram("phase.duration", unit="s")
    attributes = {"phase": "forward"}

    def loop(count: int) -> None:
        for _ in repeat(None, count):
            histogram.record(_SECONDS, attributes)

    return loop


def _opentelemetry_span() -> Callable[[int], None]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")

    def loop(count: int) -> None:
        for _ in repeat(None, count):
            with tracer.start_as_current_span("forward"):
                pass

    return loop
