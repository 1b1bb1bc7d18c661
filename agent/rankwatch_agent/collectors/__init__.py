"""The list of the agent's collectors, and how the enabled ones are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from rankwatch_agent.collectors import incidents, sources, training
from rankwatch_agent.collectors.shared import Shared
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig

_Builder = Callable[[AgentConfig, Shared, Schedule], Iterator[Collector]]

_BUILDERS: Mapping[str, _Builder] = MappingProxyType(
    {
        "ranks": training.ranks,
        "collectives": training.collectives,
        "nccl_ras": sources.nccl_ras,
        "incidents": incidents.incidents,
        "evidence": incidents.evidence,
        "traces": training.traces,
        "trackers": incidents.trackers,
        "cost": training.cost,
        "host": sources.host,
        "clock": sources.clock,
        "network": sources.network,
        "tcp": sources.tcp,
        "disk": sources.disk,
        "processes": sources.processes,
        "checkpoints": training.checkpoints,
        "preemption": sources.preemption,
        "nvrx": sources.nvrx,
        "mounts": sources.mounts,
        "rdma": sources.rdma,
        "ethtool": sources.ethtool,
        "gpu": sources.gpu,
        "gpu_driver": sources.gpu_driver,
        "xid": sources.xid,
        "kernel_log": sources.kernel_log,
        "affinity": sources.affinity,
        "dcgm": sources.dcgm,
        "pods": sources.pods,
        "slurm": sources.slurm,
    }
)


def build_collectors(config: AgentConfig, shared: Shared) -> list[Collector]:
    """The enabled collectors. The module of a disabled one is not imported, which saves memory."""
    return [
        collector
        for name in config.enabled_collectors()
        for collector in _BUILDERS[name](config, shared, config.schedule(name))
    ]
