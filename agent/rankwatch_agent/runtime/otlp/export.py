"""The thread that sends a snapshot over OTLP at every interval, and drops what cannot be sent."""

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

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.otlp.endpoint import EXPORTER_LOGGER, Endpoint, Origin, QuietFilter
from rankwatch_agent.runtime.otlp.points import MAX_POINTS, Span, metric_batches
from rankwatch_agent.runtime.reread import Reread
from rankwatch_agent.runtime.runner import next_start
from rankwatch_agent.runtime.supervisor import Snapshot

logger = logging.getLogger(__name__)

_LINE = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*(?P<value>[\x20-\x7e]*)")
"""A header's name (RFC 9110, token) and a value of printable ASCII."""


def load_headers(path: Path) -> dict[str, str]:
    """The headers in the file; raises UserError where it cannot be read or a line is no NAME=VALUE."""
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
    """NAME=VALUE lines; empty ones and those that begin with # count for nothing.

    Raises ValueError with the number of a line that is wrong, never with its content: it is secret.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise ValueError(f"expected NAME=VALUE in line {number}")
        found[match["name"]] = match["value"]
    return found


_BATCHES = metric("rankwatch_otlp_batches_total")
_LAST_SUCCESS = metric("rankwatch_otlp_last_success_timestamp_seconds")


class Outcome(StrEnum):
    """What became of a batch."""

    SENT = "sent"
    DROPPED = "dropped"


class Tally:
    """Counts batches; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Every outcome from the start, at 0: rate() needs the sample before the first failure.
        self._batches = dict.fromkeys(Outcome, 0)
        self._last_success: float | None = None

    def count(self, outcome: Outcome, at: float) -> None:
        """One more batch with this outcome, at `at` in Unix seconds."""
        with self._lock:
            self._batches[outcome] += 1
            if outcome is Outcome.SENT:
                self._last_success = at

    def collection(self) -> Collection:
        """The counts as series."""
        with self._lock:
            series = [Series(_BATCHES, (outcome.value,), count) for outcome, count in self._batches.items()]
            if self._last_success is not None:
                series.append(Series(_LAST_SUCCESS, (), self._last_success))
        return Collection(tuple(series))


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
