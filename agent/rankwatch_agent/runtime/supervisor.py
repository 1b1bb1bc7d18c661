"""Runs each collector in a thread of its own, on its schedule and against its deadline, keeps them apart, and
puts their last results into one snapshot.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from rankwatch.conventions.states import CollectorState
from rankwatch_agent.runtime.collector import Collection, Collector, sample
from rankwatch_agent.runtime.errors import AgentError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
"""Time between two checks of deadlines. Without scrapes too, the log then reports a hang."""

_LEAST_OVERDUE = 2.0
"""Intervals without success from which a collector says so: before that, its next run may be under way."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scrape renders. Immutable, so that scrapes may render it while collectors run."""

    collections: tuple[Collection, ...]
    """The health of the agent, then the results that are neither failed, overdue nor stale."""
    pending: tuple[str, ...]
    """Names of the collectors that have not completed a first run."""


class Supervisor:
    """Owns one runner for each collector. `snapshot` never waits for a collector."""

    def __init__(
        self, collectors: Sequence[Collector], *, version: str, clocks: Clocks | None = None
    ) -> None:
        self._clocks = clocks = clocks or Clocks()
        self._version = version
        self._stopping = threading.Event()
        self._runners = [CollectorRunner(each, clocks, self._stopping) for each in collectors]
        self._watch = threading.Thread(target=self._watch_deadlines, name="deadlines", daemon=True)

    def start(self) -> None:
        for runner in self._runners:
            runner.start()
        self._watch.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ask all collectors to stop, wait for them at most `timeout_seconds` in all, and close those that
        have something to close, such as children. One that hangs ends with this process."""
        self._stopping.set()
        end = time.monotonic() + timeout_seconds
        for runner in self._runners:
            ended = runner.join(max(0.0, end - time.monotonic()))
            close = getattr(runner.collector, "close", None)
            if close is not None and ended:
                close()

    def snapshot(self) -> Snapshot:
        """Return the last good results and the health of all collectors."""
        healths = [(runner.collector, runner.health()) for runner in self._runners]
        found = (health.collection for _, health in healths)
        return Snapshot(
            collections=(
                _health_metrics(self._version, healths, self._clocks.wall()),
                *(collection for collection in found if collection is not None),
            ),
            pending=tuple(collector.name for collector, health in healths if not health.completed),
        )

    def _watch_deadlines(self) -> None:
        while not self._stopping.wait(WATCH_SECONDS):
            for runner in self._runners:
                runner.health()


def _health_metrics(
    version: str, healths: Sequence[tuple[Collector, CollectorHealth]], now: float
) -> Collection:
    """State, duration, last success, interval and run counts. What is not known yet has no series, and what
    this node never had has its state only: most nodes lack half of what an agent can read."""
    series = [sample("rankwatch_agent_info", (version,), 1), sample("rankwatch_host_time_seconds", (), now)]
    series.append(sample("rankwatch_collectors", (), sum(health.state is not None for _, health in healths)))
    for collector, health in healths:
        name = (collector.name,)
        if health.state is not None:
            series.append(sample("rankwatch_collector_state", (collector.name, health.state.value), 1))
        if health.never_applied:
            continue
        if health.duration_seconds is not None:
            series.append(sample("rankwatch_collector_duration_seconds", name, health.duration_seconds))
        if health.last_success_timestamp_seconds is not None:
            series.append(
                sample(
                    "rankwatch_collector_last_success_timestamp_seconds",
                    name,
                    health.last_success_timestamp_seconds,
                )
            )
            overdue = (now - health.last_success_timestamp_seconds) / collector.interval_seconds
            if overdue >= _LEAST_OVERDUE and health.state is not CollectorState.NOT_APPLICABLE:
                series.append(sample("rankwatch_collector_overdue_intervals", name, overdue))
        series.append(sample("rankwatch_collector_interval_seconds", name, collector.interval_seconds))
        if health.broken_parts is not None:
            series.append(sample("rankwatch_collector_read_errors_total", name, health.broken_parts))
        # Every outcome starts at 0: rate() needs a sample before the first failure.
        series.extend(
            sample("rankwatch_collector_runs_total", (collector.name, outcome.value), n)
            for outcome, n in health.runs.items()
        )
    return Collection(series)


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
        """Return the state of a collector after a run that ended like this."""
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
        """Return the health once the present run has passed its deadline."""
        runs = self._counted(RunOutcome.DEADLINE)
        return replace(self, state=CollectorState.FAILED, collection=None, runs=runs)

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
        """Return the health after a run. An overdue run is shown again, but was counted at its deadline."""
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
        """Return the same, but failed and without a result if that is older than `limit` seconds."""
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
        """Return the health now. This call also notices a run past its deadline."""
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
    """Return the first moment after `now` on the grid `first + k * interval`.

    A run longer than its interval skips starts instead of catching up, and the grid never shifts.
    """
    return first + (math.floor((now - first) / interval) + 1) * interval


def stale_after(interval: float, deadline: float) -> float:
    """Return the age in seconds past which a result is no longer shown: three missed runs, or a late one."""
    return max(3 * interval, deadline + interval)


def _check(collection: Collection) -> None:
    """Raise AgentError for a sample that cannot be rendered. Found here, it costs only this collector."""
    for each, labels, value in collection.series:
        plain = _PLAIN.issuperset(map(type, labels))  # several times faster than isinstance for each label
        if len(labels) != len(each.labels) or not (plain or all(isinstance(label, str) for label in labels)):
            raise AgentError(f"could not use a sample of {each.name}: its labels are {labels!r:.200}")
        if not isinstance(value, int | float):
            raise AgentError(f"could not use a sample of {each.name}: its value is {value!r:.200}")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise AgentError(f"could not use a sample of {each.name}: its value is too large")
    for each, labels, buckets, *_ in collection.histograms:
        if len(labels) != len(each.labels) or not buckets or buckets[-1][0] != float("inf"):
            raise AgentError(f"could not use a histogram of {each.name}: labels {labels!r:.200}, or buckets")
