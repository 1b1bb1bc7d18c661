"""Starts the collectors, keeps them apart, and puts their last results into one snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Series
from rankwatch_agent.runtime.runner import Clocks, CollectorRunner, RunRecord

_INFO = metric("rankwatch_agent_info")
_STATE = metric("rankwatch_collector_state")
_DURATION = metric("rankwatch_collector_duration_seconds")
_LAST_SUCCESS = metric("rankwatch_collector_last_success_timestamp_seconds")
_INTERVAL = metric("rankwatch_collector_interval_seconds")
_RUNS = metric("rankwatch_collector_runs_total")
_BROKEN_PARTS = metric("rankwatch_collector_broken_parts_total")


def health(version: str, collectors: Iterable[tuple[Collector, RunRecord]]) -> Collection:
    """State, duration, last success, interval and run counts; what is not known yet has no series."""
    series = [Series(_INFO, (version,), 1)]
    for collector, record in collectors:
        name = (collector.name,)
        if record.state is not None:
            series.append(Series(_STATE, (collector.name, record.state.value), 1))
        if record.duration_seconds is not None:
            series.append(Series(_DURATION, name, record.duration_seconds))
        if record.last_success_timestamp_seconds is not None:
            series.append(Series(_LAST_SUCCESS, name, record.last_success_timestamp_seconds))
        series.append(Series(_INTERVAL, name, collector.interval_seconds))
        if record.broken_parts is not None:
            series.append(Series(_BROKEN_PARTS, name, record.broken_parts))
        # Every outcome from the start, at 0: rate() needs the sample before the first failure.
        series.extend(Series(_RUNS, (collector.name, outcome.value), n) for outcome, n in record.runs.items())
    return Collection(series)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable, so that any number of scrapes may render it while collectors go on."""

    collections: tuple[Collection, ...]
    """Results that are neither failed, overdue nor stale; the agent's own health comes first."""
    pending: tuple[str, ...]
    """Names of the collectors that have not completed a first run."""


WATCH_SECONDS = 1.0
"""How often deadlines are looked at when nobody scrapes, so that the log still tells of a hang."""


class Supervisor:
    """Owns one runner per collector. `snapshot` never waits for a collector."""

    def __init__(
        self, collectors: Sequence[Collector], *, version: str, clocks: Clocks | None = None
    ) -> None:
        clocks = clocks or Clocks()
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
        """Ask all collectors to stop, and wait for them at most `timeout_seconds` in all."""
        self._stopping.set()
        end = time.monotonic() + timeout_seconds
        for runner in self._runners:
            runner.join(max(0.0, end - time.monotonic()))

    def snapshot(self) -> Snapshot:
        """The last good results and the health of all collectors."""
        records = [(runner.collector, runner.record()) for runner in self._runners]
        found = (record.collection for _, record in records)
        return Snapshot(
            collections=(
                health(self._version, records),
                *(collection for collection in found if collection is not None),
            ),
            pending=tuple(collector.name for collector, record in records if not record.completed),
        )

    def _watch_deadlines(self) -> None:
        while not self._stopping.wait(WATCH_SECONDS):
            for runner in self._runners:
                runner.record()
