"""The thread that sends a snapshot over OTLP at every interval, and drops what cannot be sent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from rankwatch_agent.runtime.export.otlp.exporter import EXPORTER_LOGGER, Endpoint, Origin
from rankwatch_agent.runtime.export.otlp.headers import load_headers
from rankwatch_agent.runtime.export.otlp.points import MAX_POINTS, Span, metric_batches
from rankwatch_agent.runtime.export.otlp.quiet import QuietFilter
from rankwatch_agent.runtime.export.otlp.tally import Outcome, Tally
from rankwatch_agent.runtime.reread import Reread
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import next_start
from rankwatch_agent.runtime.supervision.snapshot import Snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OtlpSettings:
    """Where to, how often, and with which headers."""

    endpoint: str
    interval_seconds: float
    timeout_seconds: float
    """Longest time for one batch; after it the rest of the export is dropped, not tried."""
    headers_file: Path | None = None
    max_points: int = MAX_POINTS


class OtlpExport:
    """Sends what `snapshot` gives, one export at a time; nothing queues up behind a slow endpoint.

    The thread is a daemon: an endpoint that hangs keeps nobody from exiting. Raises UserError where the
    file of headers cannot be used; it is read again when it changes.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], settings: OtlpSettings, origin: Origin) -> None:
        self._collected = snapshot
        self._settings = settings
        self._origin = origin
        self._headers = _headers(settings.headers_file)
        self._endpoint = self._connect(self._headers())
        self._tally = Tally()
        self._quiet = QuietFilter()
        self._log_limit = LogLimit()
        self._started = time.time_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_until_stopped, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread; the first export follows after one interval."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread; wait at most `timeout_seconds` for an export that hangs."""
        self._stopping.set()
        self._endpoint.close()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def snapshot(self) -> Snapshot:
        """The snapshot with the counts of the export in it, for scrapes as well."""
        collected = self._collected()
        return replace(collected, collections=(*collected.collections, self._tally.collection()))

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
        self._renew_headers()
        span = Span(self._started, time.time_ns())
        failed = False
        for batch in metric_batches(self.snapshot().collections, span, self._settings.max_points):
            if self._stopping.is_set():
                return
            # After one failure the rest would fail too, and each take its time.
            failed = failed or not self._endpoint.send(batch)
            self._tally.count(Outcome.DROPPED if failed else Outcome.SENT, time.time())
        self._log(failed)

    def _renew_headers(self) -> None:
        headers = self._headers()
        if headers != self._endpoint.headers:
            former, self._endpoint = self._endpoint, self._connect(headers)
            former.close()

    def _connect(self, headers: Mapping[str, str]) -> Endpoint:
        return Endpoint(
            self._settings.endpoint,
            headers=headers,
            timeout_seconds=self._settings.timeout_seconds,
            origin=self._origin,
        )

    def _log(self, failed: bool) -> None:
        if failed and not self._stopping.is_set() and self._log_limit.allows("failed"):
            # The address without a user's name and password.
            host = urlsplit(self._settings.endpoint).netloc.rpartition("@")[2]
            logger.warning("could not send metrics over OTLP to %s; what is not sent is dropped", host)


def _headers(path: Path | None) -> Callable[[], Mapping[str, str]]:
    if path is None:
        return dict
    return Reread([path], lambda: load_headers(path)).current
