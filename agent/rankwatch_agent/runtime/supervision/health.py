"""The agent's metrics about itself: its version and the health of every collector."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Series
from rankwatch_agent.runtime.supervision.run_record import RunRecord

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
