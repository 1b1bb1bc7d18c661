"""Collectors of the training processes: their ranks, collectives, checkpoints, traces and cost."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch.conventions.states import IncidentKind
from rankwatch_agent.collectors.shared import Shared
from rankwatch_agent.incidents.registry import IncidentRegistry
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.training.spans.records import OpenIncident


def ranks(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.gpu.users import gpu_users
    from rankwatch_agent.training.collector import RanksCollector

    yield RanksCollector(
        directory=config.directory,
        interval_seconds=schedule.interval_seconds,
        deadline_seconds=schedule.deadline_seconds,
        retention_seconds=config.retention_seconds,
        max_runs=config.max_runs,
        max_names=config.max_names,
        conditions=shared.run_conditions,
        notes=shared.traces.notes if shared.traces else None,
        tracked=shared.tracked_runs,
        exemplars=shared.traces.exemplars if shared.traces else None,
        events=shared.events,
        cycles=shared.cycles,
        state_directory=config.state_path(),
        ledgers=shared.ledgers,
        plateau_steps=config.plateau_steps,
        step_window_seconds=config.step_window_seconds,
        max_single_ranks=config.max_single_ranks,
        gpu_users=lambda: gpu_users(shared.inventory.gpus(), config.procfs),
    )


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


def traces(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if shared.traces is None:
        return
    from rankwatch_agent.training.spans.collector import TracesCollector, TraceSettings

    collector = TracesCollector(
        notes=shared.traces.notes,
        queue=shared.traces.queue,
        exemplars=shared.traces.exemplars,
        settings=TraceSettings(
            cluster=config.cluster,
            node=config.node,
            one_in=config.traces_one_in,
            heartbeat_seconds=config.traces_heartbeat_seconds,
            directory=config.state_path(),
        ),
        open_incidents=lambda: _open_incidents(shared.incidents),
        schedule=schedule,
    )
    shared.traces.finish = collector.close
    yield collector


def _open_incidents(registry: IncidentRegistry) -> dict[str, OpenIncident]:
    return {
        run: OpenIncident(each.number, run, each.kind.value, each.since, each.kind is IncidentKind.LOST_RANK)
        for run, each in registry.open.items()
    }


def checkpoints(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if not config.checkpoint_bytes_per_second:
        return
    from rankwatch_agent.training.checkpoint_verification.collector import (
        CheckpointsCollector,
        VerificationSettings,
    )

    settings = VerificationSettings(
        bytes_per_second=config.checkpoint_bytes_per_second,
        path_map=tuple(
            (source, target)
            for source, _, target in (each.partition("=") for each in config.checkpoint_path_map)
        ),
        rootfs=config.rootfs,
        directory=config.state_path(),
    )
    yield CheckpointsCollector(conditions=shared.run_conditions, settings=settings, schedule=schedule)


def cost(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.training.cost.collector import build_cost

    yield build_cost(config, conditions=shared.run_conditions, gpus=shared.inventory.gpus)
