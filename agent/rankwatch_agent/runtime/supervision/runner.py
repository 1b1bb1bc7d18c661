"""Runs one collector in its own thread, on its own schedule and against its own deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rankwatch_agent.runtime.collector import Collection, Collector
from rankwatch_agent.runtime.errors import AgentError, NotApplicable
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.run_record import Outcome, RunRecord
from rankwatch_agent.runtime.supervision.schedule import next_start, stale_after

logger = logging.getLogger(__name__)

_LARGEST = 2**1023
"""Samples are served as floats; a whole number beyond would fail at every scrape, for all collectors."""
_PLAIN = frozenset({str})
"""The type of nearly all labels; an enumeration's member is a string too."""


@dataclass(frozen=True)
class Clocks:
    """The two clocks: one that never jumps, in seconds, and Unix time."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class _Present(NamedTuple):
    """The run that is going on."""

    started: float
    overdue: bool


class CollectorRunner:
    """One collector and what is known about it. `record` may be called from any thread.

    The thread is a daemon: a collector that hangs in a system call keeps nobody from exiting.
    """

    def __init__(self, collector: Collector, clocks: Clocks, stopping: threading.Event) -> None:
        self.collector = collector
        self._clocks = clocks
        self._stopping = stopping
        self._log_limit = LogLimit(clocks.monotonic)
        self._lock = threading.Lock()
        self._record = RunRecord()
        self._present: _Present | None = None
        self._thread = threading.Thread(
            target=self._run_until_stopped, name=f"collector-{collector.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread; the first run begins at once."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the thread to end."""
        self._thread.join(timeout)

    def record(self) -> RunRecord:
        """What is known now; a run past its deadline is noticed here, so whoever looks sees it."""
        collector = self.collector
        now = self._clocks.monotonic()
        with self._lock:
            present = self._present
            noticed = (
                present is not None
                and not present.overdue
                and now - present.started > collector.deadline_seconds
            )
            if present is not None and noticed:
                self._present = present._replace(overdue=True)
                self._record = self._record.overdue()
                noticed = self._log_limit.allows("deadline")
            record = self._record
        if noticed:
            logger.warning(
                "collector %s has run past its deadline of %g s; its series are left out until it returns",
                collector.name,
                collector.deadline_seconds,
            )
        return record.without_stale(now, stale_after(collector.interval_seconds, collector.deadline_seconds))

    def _run_until_stopped(self) -> None:
        first = self._clocks.monotonic()
        while not self._stopping.is_set():
            self._run_once()
            now = self._clocks.monotonic()
            self._stopping.wait(next_start(first, self.collector.interval_seconds, now) - now)

    def _run_once(self) -> None:
        started = self._clocks.monotonic()
        with self._lock:
            self._present = _Present(started, overdue=False)
        outcome, collection = self._collect()
        self.record()  # a run that ended late without anybody looking is still counted as late
        ended = self._clocks.monotonic()
        with self._lock:
            was_overdue = self._present is not None and self._present.overdue
            self._present = None
            self._record = self._record.ended(
                outcome,
                collection,
                at=ended,
                duration=ended - started,
                wall=self._clocks.wall(),
                was_overdue=was_overdue,
            )

    def _collect(self) -> tuple[Outcome, Collection | None]:
        """Run the collector; whatever it raises becomes an outcome."""
        try:
            collection = self.collector.collect()
            _check(collection)
        except NotApplicable as absent:
            self._log_first(logging.INFO, f"does not apply here: {absent}")
            return Outcome.NOT_APPLICABLE, None
        except AgentError as error:
            self._log_first(logging.WARNING, f"failed: {error}")
            return Outcome.FAILED, None
        except Exception as error:  # noqa: BLE001  one collector's bug must not cost the others' series
            self._log_first(logging.ERROR, f"failed: {type(error).__name__}: {error}", error)
            return Outcome.FAILED, None
        return Outcome.OK, collection

    def _log_first(self, level: int, message: str, error: Exception | None = None) -> None:
        with self._lock:
            allowed = self._log_limit.allows(message)
        if allowed:
            logger.log(level, "collector %s %s", self.collector.name, message, exc_info=error)


def _check(collection: Collection) -> None:
    """Raise AgentError where a sample could not be rendered: found here, it costs one collector only."""
    for metric, labels, value in collection.series:
        plain = _PLAIN.issuperset(map(type, labels))  # asking each label costs several times as much
        if len(labels) != len(metric.labels) or not (plain or all(isinstance(each, str) for each in labels)):
            raise AgentError(f"could not use a sample of {metric.name}: its labels are {labels!r:.200}")
        if not isinstance(value, int | float):
            raise AgentError(f"could not use a sample of {metric.name}: its value is {value!r:.200}")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise AgentError(f"could not use a sample of {metric.name}: its value has no end")
    for metric, labels, buckets, _ in collection.histograms:
        if len(labels) != len(metric.labels) or not buckets or buckets[-1][0] != float("inf"):
            raise AgentError(
                f"could not use a histogram of {metric.name}: labels {labels!r:.200}, or buckets"
            )
