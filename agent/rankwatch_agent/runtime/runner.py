"""Runs one collector in a thread of its own, on its schedule and against its deadline."""

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

from rankwatch.conventions.states import CollectorState
from rankwatch_agent.runtime.collector import Collection, Collector
from rankwatch_agent.runtime.errors import AgentError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)

_LARGEST = 2**1023
"""Samples are served as floats. A larger whole number would fail every scrape, for all collectors."""
_PLAIN = frozenset({str})
"""The type of nearly all labels; members of enumerations are strings too."""


class RunOutcome(StrEnum):
    """How a run ended, as counted. A run past its deadline counts once, as `deadline`."""

    OK = "ok"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    DEADLINE = "deadline"

    def state(self) -> CollectorState:
        """The state of a collector after a run that ended like this."""
        return CollectorState.FAILED if self is RunOutcome.DEADLINE else CollectorState(self.value)


_NO_RUNS: Mapping[RunOutcome, int] = MappingProxyType(dict.fromkeys(RunOutcome, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectorHealth:
    """What is known about the runs of one collector. Each event gives a new, immutable object."""

    state: CollectorState | None = None
    """None until the first run ends or passes its deadline."""
    completed: bool = False
    """True once any run has ended."""
    collection: Collection | None = None
    """The result of the last run; None unless it succeeded in time."""
    collected_at: float = 0.0
    """When the last run ended, in monotonic seconds."""
    duration_seconds: float | None = None
    last_success_timestamp_seconds: float | None = None
    runs: Mapping[RunOutcome, int] = field(default_factory=lambda: _NO_RUNS)
    broken_parts: int | None = None
    """Sum over all runs; None for a source that is not made of parts."""

    @property
    def never_applied(self) -> bool:
        """True if every run has found that there is nothing to read on this node."""
        found = {outcome for outcome, count in self.runs.items() if count}
        return found == {RunOutcome.NOT_APPLICABLE}

    def overdue(self) -> CollectorHealth:
        """The health once the present run has passed its deadline."""
        return replace(
            self,
            state=CollectorState.FAILED,
            collection=None,
            runs=self._counted(RunOutcome.DEADLINE),
        )

    def ended(
        self,
        outcome: RunOutcome,
        collection: Collection | None,
        *,
        at: float,
        duration: float,
        wall: float,
        was_overdue: bool,
    ) -> CollectorHealth:
        """The health after a run. An overdue run is shown again, but was counted at its deadline."""
        return CollectorHealth(
            state=outcome.state(),
            completed=True,
            collection=collection,
            collected_at=at,
            duration_seconds=duration,
            last_success_timestamp_seconds=(
                wall if outcome is RunOutcome.OK else self.last_success_timestamp_seconds
            ),
            runs=self.runs if was_overdue else self._counted(outcome),
            broken_parts=self._with_broken_parts(collection),
        )

    def without_stale(self, now: float, limit: float) -> CollectorHealth:
        """The same, but failed and without a result if that is older than `limit` seconds."""
        if self.collection is None or now - self.collected_at <= limit:
            return self
        return replace(self, state=CollectorState.FAILED, collection=None)

    def _with_broken_parts(self, collection: Collection | None) -> int | None:
        if collection is None or collection.broken_parts is None:
            return self.broken_parts
        return (self.broken_parts or 0) + collection.broken_parts

    def _counted(self, outcome: RunOutcome) -> Mapping[RunOutcome, int]:
        return MappingProxyType({**self.runs, outcome: self.runs[outcome] + 1})


@dataclass(frozen=True)
class Clocks:
    """A clock that never jumps and the clock of Unix time, both in seconds."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class _Run(NamedTuple):
    """The run in progress."""

    started: float
    overdue: bool


class CollectorRunner:
    """One collector and its health. `health` may be called from any thread.

    The thread is a daemon: a collector that hangs in a system call does not keep the process from exiting.
    """

    def __init__(self, collector: Collector, clocks: Clocks, stopping: threading.Event) -> None:
        self.collector = collector
        self._clocks = clocks
        self._stopping = stopping
        self._log_limit = LogLimit(clocks.monotonic)
        self._lock = threading.Lock()
        self._health = CollectorHealth()
        self._run: _Run | None = None
        self._thread = threading.Thread(
            target=self._run_until_stopped, name=f"collector-{collector.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread; the first run begins at once."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the thread to end; True if it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def health(self) -> CollectorHealth:
        """The health now. This call also notices a run past its deadline."""
        collector = self.collector
        now = self._clocks.monotonic()
        with self._lock:
            run = self._run
            late = run is not None and not run.overdue and now - run.started > collector.deadline_seconds
            if run is not None and late:
                self._run = run._replace(overdue=True)
                self._health = self._health.overdue()
                late = self._log_limit.allows("deadline")
            health = self._health
        if late:
            logger.warning(
                "collector %s has run past its deadline of %g s; its series are left out until it returns",
                collector.name,
                collector.deadline_seconds,
            )
        return health.without_stale(now, stale_after(collector.interval_seconds, collector.deadline_seconds))

    def _run_until_stopped(self) -> None:
        first = self._clocks.monotonic()
        while not self._stopping.is_set():
            self._run_once()
            now = self._clocks.monotonic()
            self._stopping.wait(next_start(first, self.collector.interval_seconds, now) - now)

    def _run_once(self) -> None:
        started = self._clocks.monotonic()
        with self._lock:
            self._run = _Run(started, overdue=False)
        outcome, collection = self._collect()
        self.health()  # counts a run that ended late and that nobody looked at meanwhile
        ended = self._clocks.monotonic()
        with self._lock:
            was_overdue = self._run is not None and self._run.overdue
            self._run = None
            self._health = self._health.ended(
                outcome,
                collection,
                at=ended,
                duration=ended - started,
                wall=self._clocks.wall(),
                was_overdue=was_overdue,
            )

    def _collect(self) -> tuple[RunOutcome, Collection | None]:
        """Run the collector. Every exception becomes an outcome."""
        try:
            collection = self.collector.collect()
            _check(collection)
        except NotApplicable as absent:
            self._log_limited(logging.INFO, f"does not apply here: {absent}")
            return RunOutcome.NOT_APPLICABLE, None
        except AgentError as error:
            self._log_limited(logging.WARNING, f"failed: {error}")
            return RunOutcome.FAILED, None
        except Exception as error:  # noqa: BLE001  a bug in one collector must not cost the others' series
            self._log_limited(logging.ERROR, f"failed: {type(error).__name__}: {error}", error)
            return RunOutcome.FAILED, None
        return RunOutcome.OK, collection

    def _log_limited(self, level: int, message: str, error: Exception | None = None) -> None:
        with self._lock:
            allowed = self._log_limit.allows(message)
        if allowed:
            logger.log(level, "collector %s %s", self.collector.name, message, exc_info=error)


def next_start(first: float, interval: float, now: float) -> float:
    """The first moment after `now` on the grid `first + k * interval`.

    A run longer than its interval skips starts instead of catching up, and the grid never shifts.
    """
    return first + (math.floor((now - first) / interval) + 1) * interval


def stale_after(interval: float, deadline: float) -> float:
    """Age in seconds past which a result is no longer shown: after three missed runs, or one late run."""
    return max(3 * interval, deadline + interval)


def _check(collection: Collection) -> None:
    """Raise AgentError for a sample that cannot be rendered. Found here, it costs only this collector."""
    for metric, labels, value in collection.series:
        plain = _PLAIN.issuperset(map(type, labels))  # several times faster than isinstance for each label
        if len(labels) != len(metric.labels) or not (plain or all(isinstance(each, str) for each in labels)):
            raise AgentError(f"could not use a sample of {metric.name}: its labels are {labels!r:.200}")
        if not isinstance(value, int | float):
            raise AgentError(f"could not use a sample of {metric.name}: its value is {value!r:.200}")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise AgentError(f"could not use a sample of {metric.name}: its value is too large")
    for metric, labels, buckets, *_ in collection.histograms:
        if len(labels) != len(metric.labels) or not buckets or buckets[-1][0] != float("inf"):
            raise AgentError(
                f"could not use a histogram of {metric.name}: labels {labels!r:.200}, or buckets"
            )
