"""Starts the collectors, keeps them apart, and puts their last results into one snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rankwatch.conventions.metrics import metric
from rankwatch.conventions.states import CollectorState
from rankwatch_agent.runtime.collector import Collection, Collector, Series
from rankwatch_agent.runtime.runner import Clocks, CollectorHealth, CollectorRunner

WATCH_SECONDS = 1.0
"""Time between two checks of deadlines. Without scrapes too, the log then reports a hang."""

_INFO = metric("rankwatch_agent_info")
_TIME = metric("rankwatch_host_time_seconds")
_COLLECTORS = metric("rankwatch_collectors")
_STATE = metric("rankwatch_collector_state")
_DURATION = metric("rankwatch_collector_duration_seconds")
_LAST_SUCCESS = metric("rankwatch_collector_last_success_timestamp_seconds")
_INTERVAL = metric("rankwatch_collector_interval_seconds")
_OVERDUE = metric("rankwatch_collector_overdue_intervals")
_LEAST_OVERDUE = 2.0
"""Intervals without success from which a collector says so: before that, its next run may be under way."""
_RUNS = metric("rankwatch_collector_runs_total")
_BROKEN_PARTS = metric("rankwatch_collector_read_errors_total")


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
        """Start every collector."""
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
        """The last good results and the health of all collectors."""
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
    series = [Series(_INFO, (version,), 1), Series(_TIME, (), now)]
    series.append(Series(_COLLECTORS, (), sum(health.state is not None for _, health in healths)))
    for collector, health in healths:
        name = (collector.name,)
        if health.state is not None:
            series.append(Series(_STATE, (collector.name, health.state.value), 1))
        if health.never_applied:
            continue
        if health.duration_seconds is not None:
            series.append(Series(_DURATION, name, health.duration_seconds))
        if health.last_success_timestamp_seconds is not None:
            series.append(Series(_LAST_SUCCESS, name, health.last_success_timestamp_seconds))
            overdue = (now - health.last_success_timestamp_seconds) / collector.interval_seconds
            if overdue >= _LEAST_OVERDUE and health.state is not CollectorState.NOT_APPLICABLE:
                series.append(Series(_OVERDUE, name, overdue))
        series.append(Series(_INTERVAL, name, collector.interval_seconds))
        if health.broken_parts is not None:
            series.append(Series(_BROKEN_PARTS, name, health.broken_parts))
        # Every outcome starts at 0: rate() needs a sample before the first failure.
        series.extend(Series(_RUNS, (collector.name, outcome.value), n) for outcome, n in health.runs.items())
    return Collection(series)
