"""Runs one collector in its own thread, on its own schedule and against its own deadline."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.conventions import CollectorState
from rankwatch_agent.runtime.collector import Collection, Collector
from rankwatch_agent.runtime.errors import AgentError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)


class Outcome(StrEnum):
    """How a run ended, as counted; a run past its deadline counts once, as `deadline`."""

    OK = "ok"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    DEADLINE = "deadline"

    def state(self) -> CollectorState:
        """The state of a collector whose last run ended so."""
        return CollectorState.FAILED if self is Outcome.DEADLINE else CollectorState(self.value)


_NO_RUNS: Mapping[Outcome, int] = MappingProxyType(dict.fromkeys(Outcome, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Immutable; each event in the life of a collector gives a new one."""

    state: CollectorState | None = None
    """None until a first run has ended or passed its deadline."""
    completed: bool = False
    """Whether any run has ever ended."""
    collection: Collection | None = None
    """What the last run found; None unless it succeeded in time."""
    collected_at: float = 0.0
    """When the last run ended, monotonic seconds."""
    duration_seconds: float | None = None
    last_success_timestamp_seconds: float | None = None
    runs: Mapping[Outcome, int] = field(default_factory=lambda: _NO_RUNS)
    broken_parts: int | None = None
    """Over all runs; None until one was made of parts."""

    def overdue(self) -> RunRecord:
        """After the present run has passed its deadline."""
        return replace(
            self,
            state=CollectorState.FAILED,
            collection=None,
            runs=self._counted(Outcome.DEADLINE),
        )

    def ended(
        self,
        outcome: Outcome,
        collection: Collection | None,
        *,
        at: float,
        duration: float,
        wall: float,
        was_overdue: bool,
    ) -> RunRecord:
        """After a run ended; one that was overdue is shown again but not counted a second time."""
        return RunRecord(
            state=outcome.state(),
            completed=True,
            collection=collection,
            collected_at=at,
            duration_seconds=duration,
            last_success_timestamp_seconds=(
                wall if outcome is Outcome.OK else self.last_success_timestamp_seconds
            ),
            runs=self.runs if was_overdue else self._counted(outcome),
            broken_parts=self._with_broken_parts(collection),
        )

    def without_stale(self, now: float, limit: float) -> RunRecord:
        """The same, failed and empty where the last result is older than `limit` seconds."""
        if self.collection is None or now - self.collected_at <= limit:
            return self
        return replace(self, state=CollectorState.FAILED, collection=None)

    def _with_broken_parts(self, collection: Collection | None) -> int | None:
        if collection is None or collection.broken_parts is None:
            return self.broken_parts
        return (self.broken_parts or 0) + collection.broken_parts

    def _counted(self, outcome: Outcome) -> Mapping[Outcome, int]:
        return MappingProxyType({**self.runs, outcome: self.runs[outcome] + 1})


def next_start(first: float, interval: float, now: float) -> float:
    """The first moment after `now` on the grid `first + k * interval`.

    A run that took longer than its interval therefore skips starts instead of catching up, and the
    grid never shifts.
    """
    return first + (math.floor((now - first) / interval) + 1) * interval


def stale_after(interval: float, deadline: float) -> float:
    """Age in seconds past which a result is no longer shown: three runs missed, or one that was late."""
    return max(3 * interval, deadline + interval)


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
