"""The collectors of one agent: how the enabled ones are built, and what they share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from rankwatch_agent.incidents.episodes import IncidentRegistry
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.runtime.collector import Collector
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.node_events import NodeEvents, RestartCycles
from rankwatch_agent.runtime.source import source_of
from rankwatch_agent.sources.gpu.driver import Driver, worker_command
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.shared import NodeShared
from rankwatch_agent.sources.xid import XidCounter, load_table
from rankwatch_agent.training.conditions import RunConditions, living_ranks
from rankwatch_agent.training.notes import Exemplars, Notes
from rankwatch_agent.training.tracked_runs import TrackedRuns

FIRST_READING_SECONDS = 3.0
"""How long collectors wait for the first list of GPUs. With an awake driver it takes about half a second."""


@dataclass(frozen=True, kw_only=True)
class Shared(NodeShared):
    """What several collectors of one agent use: one of each."""

    run_conditions: RunConditions
    tracked_runs: TrackedRuns
    incidents: IncidentRegistry
    history: MetricsHistory
    notes: Notes | None
    """Notes that `ranks` takes for traces; None where they go nowhere."""
    exemplars: Exemplars
    services: list[AbstractContextManager[object]] = field(default_factory=list)
    """Services that run beside the collectors that use them, for as long as the agent, and end after them."""


def build_collectors(config: AgentConfig, shared: Shared) -> list[Collector]:
    """Return the enabled collectors. The module of a disabled one is not imported, which saves memory."""
    return [
        collector
        for name in config.enabled_collectors()
        for collector in source_of(name).build(config, shared, config.schedule(name))
    ]


def build_shared(config: AgentConfig) -> Shared:
    """Start nothing yet. Raises UserError for an XID table that cannot be used."""
    run_conditions = RunConditions()
    return Shared(
        driver=Driver(worker_command(config.nvml_library, nvlink_per_link=config.nvlink_per_link)),
        inventory=GpuInventory(FIRST_READING_SECONDS if "gpu" in config.enabled_collectors() else 0.0),
        xids=XidCounter(load_table(config.xid_table)),
        events=NodeEvents(),
        cycles=RestartCycles(),
        living_ranks=lambda: living_ranks(run_conditions),
        run_conditions=run_conditions,
        tracked_runs=TrackedRuns(),
        incidents=IncidentRegistry(),
        history=MetricsHistory(),
        notes=Notes() if _wants_traces(config) else None,
        exemplars=Exemplars(),
    )


def _wants_traces(config: AgentConfig) -> bool:
    wanted = config.traces_endpoint or config.traces_file is not None
    return bool(wanted) and "traces" in config.enabled_collectors()
