"""What collectors share: the driver, the GPUs it told of, XID errors, which runs look stuck, incidents."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch_agent.incidents.board import IncidentBoard
from rankwatch_agent.incidents.pages import MetricsPages
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.sources.gpu.driver import Driver, worker_command
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.xid.counter import XidCounter
from rankwatch_agent.sources.xid.meanings import load_table
from rankwatch_agent.training.conditions import RunConditions

FIRST_LOOK_SECONDS = 3.0
"""Starting the worker and a first reading take about half a second where the driver is awake."""


@dataclass(frozen=True)
class Hardware:
    """One of each per agent."""

    driver: Driver
    inventory: GpuInventory
    xids: XidCounter
    run_conditions: RunConditions
    incidents: IncidentBoard
    pages: MetricsPages


def build_hardware(config: AgentConfig) -> Hardware:
    """Nothing is started yet; raises UserError where the XID table cannot be used."""
    return Hardware(
        driver=Driver(worker_command(config.nvml_library)),
        inventory=GpuInventory(FIRST_LOOK_SECONDS if "gpu" in config.enabled_collectors() else 0.0),
        xids=XidCounter(load_table(config.xid_table)),
        run_conditions=RunConditions(),
        incidents=IncidentBoard(),
        pages=MetricsPages(),
    )
