"""Collectors of incidents: what opens one, its evidence, and the trackers that are told."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_agent.collectors.shared import Shared
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig


def incidents(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.collector import IncidentsCollector

    yield IncidentsCollector(
        conditions=shared.run_conditions,
        registry=shared.incidents,
        stall_seconds=config.stall_seconds,
        schedule=schedule,
    )


def evidence(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.evidence import build_evidence

    yield build_evidence(config, registry=shared.incidents, history=shared.history)


def trackers(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.trackers import build_trackers

    yield build_trackers(config, runs=shared.tracked_runs, registry=shared.incidents)
