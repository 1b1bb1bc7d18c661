"""Collectors of the training processes, of their incidents, and the trackers that are told of both.

The module of a disabled one is not imported, which saves memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_agent.collectors import Shared
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.source import source


# The ring of a black box must be read before it is overwritten: this one runs often.
@source(interval_seconds=1.0, deadline_seconds=10.0)
def ranks(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.gpu.inventory import gpu_users
    from rankwatch_agent.training.collector import RanksCollector

    yield RanksCollector(
        directory=config.directory,
        interval_seconds=schedule.interval_seconds,
        deadline_seconds=schedule.deadline_seconds,
        retention_seconds=config.retention_seconds,
        max_runs=config.max_runs,
        max_names=config.max_names,
        conditions=shared.run_conditions,
        tracked=shared.tracked_runs,
        notes=shared.notes,
        exemplars=shared.exemplars,
        events=shared.events,
        cycles=shared.cycles,
        state_directory=config.state_path(),
        plateau_steps=config.plateau_steps,
        step_window_seconds=config.step_window_seconds,
        max_single_ranks=config.max_single_ranks,
        gpu_users=lambda: gpu_users(shared.inventory.gpus(), config.procfs),
    )


# Each pull copies the ring of a flight recorder inside the training process.
@source(interval_seconds=60.0, deadline_seconds=30.0)
def collectives(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.training.collectives.collector import CollectivesCollector

    yield CollectivesCollector(
        directory=config.directory,
        # Checks every second whether a run is suspect; the configured interval is that of healthy ranks.
        interval_seconds=min(1.0, schedule.interval_seconds),
        pull_seconds=schedule.interval_seconds,
        deadline_seconds=schedule.deadline_seconds,
        max_names=config.max_names,
        conditions=shared.run_conditions,
    )


# Adds up money between two runs; prices change by the day.
@source(interval_seconds=5.0, deadline_seconds=5.0)
def cost(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.training.cost.collector import build_cost

    yield build_cost(config, conditions=shared.run_conditions, gpus=shared.inventory.gpus)


@source(interval_seconds=1.0, deadline_seconds=5.0)
def incidents(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.collector import IncidentsCollector

    yield IncidentsCollector(
        conditions=shared.run_conditions,
        registry=shared.incidents,
        stall_seconds=config.stall_seconds,
        schedule=schedule,
    )


# Writing a bundle waits for ranks that hang, for py-spy and for the diagnosis.
@source(interval_seconds=1.0, deadline_seconds=300.0)
def evidence(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.evidence import build_evidence

    yield build_evidence(config, registry=shared.incidents, history=shared.history)


# At most six metrics of a run go to its tracker each time.
@source(interval_seconds=60.0, deadline_seconds=20.0)
def trackers(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.trackers import build_trackers

    yield build_trackers(config, runs=shared.tracked_runs, registry=shared.incidents)
