"""The thread that sends a snapshot over OTLP at every interval, and drops what it cannot send."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.otlp.endpoint import EXPORTER_LOGGER, Endpoint, QuietFilter
from rankwatch_agent.runtime.otlp.points import MAX_POINTS, TimeRange, metric_batches
from rankwatch_agent.runtime.reread import Reread
from rankwatch_agent.runtime.runner import next_start
from rankwatch_agent.runtime.supervisor import Snapshot

logger = logging.getLogger(__name__)

_BATCHES = metric("rankwatch_otlp_batches_total")
_LAST_SUCCESS = metric("rankwatch_otlp_last_success_timestamp_seconds")
_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*(?P<value>[\x20-\x7e]*)")
"""The name of a header (RFC 9110, token) and a value of printable ASCII."""


@dataclass(frozen=True, kw_only=True)
class OtlpSettings:
    """Where to send, how often, and with which headers."""

    endpoint: str
    interval_seconds: float
    timeout_seconds: float
    """Longest time for one batch. After it, the rest of the export is dropped."""
    headers_file: Path | None = None
    max_points: int = MAX_POINTS


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
        self._batch_counters = _BatchCounters()
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
        """The snapshot with the counters of the export, for scrapes as well."""
        collected = self._collected()
        return replace(collected, collections=(*collected.collections, self._batch_counters.collection()))

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
        self._update_headers()
        time_range = TimeRange(self._started, time.time_ns())
        failed = False
        for batch in metric_batches(self.snapshot().collections, time_range, self._settings.max_points):
            if self._stopping.is_set():
                return
            # After one failure the rest would most likely fail too, each after its timeout.
            failed = failed or not self._endpoint.send(batch)
            self._batch_counters.count(BatchOutcome.DROPPED if failed else BatchOutcome.SENT, time.time())
        self._log(failed)

    def _update_headers(self) -> None:
        headers = self._headers()
        if headers != self._endpoint.headers:
            previous, self._endpoint = self._endpoint, self._connect(headers)
            previous.close()

    def _connect(self, headers: Mapping[str, str]) -> Endpoint:
        return Endpoint(
            self._settings.endpoint,
            headers=headers,
            timeout_seconds=self._settings.timeout_seconds,
            resource=self._resource,
        )

    def _log(self, failed: bool) -> None:
        if failed and not self._stopping.is_set() and self._log_limit.allows("failed"):
            # The address without user name and password.
            host = urlsplit(self._settings.endpoint).netloc.rpartition("@")[2]
            logger.warning("could not send metrics over OTLP to %s; unsent metrics are dropped", host)


class BatchOutcome(StrEnum):
    """What happened to a batch."""

    SENT = "sent"
    DROPPED = "dropped"


class _BatchCounters:
    """The export's metrics about itself. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Every outcome starts at 0: rate() needs a sample before the first failure.
        self._batches = dict.fromkeys(BatchOutcome, 0)
        self._last_success: float | None = None

    def count(self, outcome: BatchOutcome, at: float) -> None:
        """Count a batch. `at` is in Unix seconds."""
        with self._lock:
            self._batches[outcome] += 1
            if outcome is BatchOutcome.SENT:
                self._last_success = at

    def collection(self) -> Collection:
        """The counters as series."""
        with self._lock:
            series = [Series(_BATCHES, (outcome.value,), count) for outcome, count in self._batches.items()]
            if self._last_success is not None:
                series.append(Series(_LAST_SUCCESS, (), self._last_success))
        return Collection(tuple(series))


def headers_source(path: Path | None) -> Callable[[], Mapping[str, str]]:
    """Returns the headers in force, read again where the file changes; none without a file."""
    if path is None:
        return dict
    return Reread([path], lambda: load_headers(path)).current


def load_headers(path: Path) -> dict[str, str]:
    """The headers in the file. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"could not read otlp_headers_file {path}: {reason}") from None
    try:
        return parse_headers(text)
    except ValueError as error:
        raise UserError(f"could not use otlp_headers_file {path}: {error}") from None


def parse_headers(text: str) -> dict[str, str]:
    """Headers from lines NAME=VALUE. Empty lines and lines that begin with # are comments.

    Raises ValueError with the number of a wrong line, never with its content, which is secret.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _HEADER.fullmatch(stripped)
        if match is None:
            raise ValueError(f"expected NAME=VALUE in line {number}")
        found[match["name"]] = match["value"]
    return found
