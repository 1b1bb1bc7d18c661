"""The collectors of the agent: the explicit list, how each is built, and what they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rankwatch.conventions.incidents import IncidentKind
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.incidents.registry import IncidentRegistry
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.node_events import NodeEvents
from rankwatch_agent.runtime.spans import SpanQueue
from rankwatch_agent.sources.gpu.driver import Driver, worker_command
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.xid.counter import XidCounter
from rankwatch_agent.sources.xid.meanings import load_table
from rankwatch_agent.training.conditions import RunConditions, living_ranks
from rankwatch_agent.training.exemplars import Exemplars
from rankwatch_agent.training.goodput.run_ledgers import RunLedgers
from rankwatch_agent.training.spans.records import Notes, OpenIncident, Traces
from rankwatch_agent.training.tracked_runs import TrackedRuns

MAX_SPANS = 10_000
"""Spans that wait for their receiver, about 10 MB."""
FIRST_READING_SECONDS = 3.0
"""How long collectors wait for the first list of GPUs. With an awake driver it takes about half a second."""


@dataclass(frozen=True)
class Shared:
    """What several collectors of one agent use: one of each."""

    driver: Driver
    inventory: GpuInventory
    xids: XidCounter
    run_conditions: RunConditions
    tracked_runs: TrackedRuns
    incidents: IncidentRegistry
    history: MetricsHistory
    ledgers: RunLedgers
    """What the time of each run was spent on."""
    events: NodeEvents
    traces: Traces | None = None
    """None where traces go nowhere."""


def build_shared(config: AgentConfig) -> Shared:
    """Start nothing yet. Raises UserError for an XID table that cannot be used."""
    return Shared(
        driver=Driver(worker_command(config.nvml_library, nvlink_per_link=config.nvlink_per_link)),
        inventory=GpuInventory(FIRST_READING_SECONDS if "gpu" in config.enabled_collectors() else 0.0),
        xids=XidCounter(load_table(config.xid_table)),
        run_conditions=RunConditions(),
        tracked_runs=TrackedRuns(),
        incidents=IncidentRegistry(),
        history=MetricsHistory(),
        ledgers=RunLedgers(_life_directory(config), time.time()),
        events=NodeEvents(),
        traces=_build_traces(config),
    )


def _life_directory(config: AgentConfig) -> Path | None:
    return Path(config.life_directory) if config.life_directory else None


def _build_traces(config: AgentConfig) -> Traces | None:
    wanted = config.traces_endpoint or config.traces_file is not None
    if not wanted or "traces" not in config.enabled_collectors():
        return None
    return Traces(Notes(), SpanQueue(MAX_SPANS), Exemplars())


def build_collectors(config: AgentConfig, shared: Shared) -> list[Collector]:
    """The enabled collectors. The module of a disabled one is not imported, which saves memory."""
    return [
        collector
        for name in config.enabled_collectors()
        for collector in _BUILDERS[name](config, shared, config.schedule(name))
    ]


_Builder = Callable[[AgentConfig, Shared, Schedule], Iterator[Collector]]


def _ranks(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
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
        life_directory=_life_directory(config),
        ledgers=shared.ledgers,
    )


def _traces(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
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
            directory=Path(config.traces_directory) if config.traces_directory else None,
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


def _collectives(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
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


def _nccl_ras(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.nccl_ras.collector import NcclRasCollector

    yield NcclRasCollector(addresses=config.nccl_ras_address, directory=config.directory, schedule=schedule)


def _incidents(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.collector import IncidentsCollector

    yield IncidentsCollector(
        conditions=shared.run_conditions,
        registry=shared.incidents,
        stall_seconds=config.stall_seconds,
        schedule=schedule,
    )


def _evidence(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.evidence import build_evidence

    yield build_evidence(config, registry=shared.incidents, history=shared.history)


def _trackers(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.incidents.trackers import build_trackers

    yield build_trackers(config, runs=shared.tracked_runs, registry=shared.incidents)


def _cost(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.training.cost.collector import build_cost

    yield build_cost(config, conditions=shared.run_conditions, gpus=shared.inventory.gpus)


def _host(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.host import HostCollector

    yield HostCollector(procfs=config.procfs, schedule=schedule)


def _clock(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.clock import ClockCollector

    yield ClockCollector(schedule=schedule)


def _network(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.network import DeviceFilter, NetworkCollector

    device_filter = DeviceFilter(include=config.network_include, exclude=config.network_exclude)
    yield NetworkCollector(
        procfs=config.procfs, sysfs=config.sysfs, device_filter=device_filter, schedule=schedule
    )


def _tcp(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.tcp import TcpCollector

    yield TcpCollector(procfs=config.procfs, schedule=schedule)


def _disk(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.disk import DiskCollector

    # One for each path: a file system that hangs costs only its own series.
    for path in dict.fromkeys(config.checkpoint_paths):
        yield DiskCollector(path=path, rootfs=config.rootfs, procfs=config.procfs, schedule=schedule)


def _checkpoints(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if not config.checkpoint_bytes_per_second:
        return
    from rankwatch_agent.training.checkpoint_verification.collector import (
        CheckpointsCollector,
        VerificationSettings,
    )

    state = config.checkpoint_state_directory
    settings = VerificationSettings(
        bytes_per_second=config.checkpoint_bytes_per_second,
        path_map=tuple(
            (source, target)
            for source, _, target in (each.partition("=") for each in config.checkpoint_path_map)
        ),
        rootfs=config.rootfs,
        directory=Path(state) if state else None,
    )
    yield CheckpointsCollector(conditions=shared.run_conditions, settings=settings, schedule=schedule)


def _processes(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.process_table import ProcessesCollector

    yield ProcessesCollector(
        procfs=config.procfs,
        sysfs=config.sysfs,
        ranks=lambda: living_ranks(shared.run_conditions),
        schedule=schedule,
    )


def _mounts(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.mounts import MountsCollector

    yield MountsCollector(
        procfs=config.procfs,
        rootfs=config.rootfs,
        ranks=lambda: living_ranks(shared.run_conditions),
        schedule=schedule,
    )


def _preemption(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if not config.preemption_cloud:
        return
    from rankwatch_agent.sources.preemption import PreemptionCollector

    yield PreemptionCollector(cloud=config.preemption_cloud, events=shared.events, schedule=schedule)


def _gpu(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.gpu.collector import GpuCollector
    from rankwatch_agent.sources.gpu.pci import PciGpus

    yield GpuCollector(
        driver=shared.driver,
        pci=PciGpus(config.sysfs),
        inventory=shared.inventory,
        xids=shared.xids,
        schedule=schedule,
        library=config.nvml_library,
    )


def _gpu_driver(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.gpu.collector import GpuDriverCollector
    from rankwatch_agent.sources.gpu.pci import PciGpus

    pci = PciGpus(config.sysfs)
    yield GpuDriverCollector(driver=shared.driver, pci=pci, sysfs=config.sysfs, schedule=schedule)


def _kernel_log(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.kernel_log.collector import KernelLogCollector

    yield KernelLogCollector(
        path=config.kernel_log,
        procfs=config.procfs,
        inventory=shared.inventory,
        xids=shared.xids,
        schedule=schedule,
        events=shared.events,
    )


def _xid(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.xid.collector import XidCollector

    yield XidCollector(inventory=shared.inventory, xids=shared.xids, schedule=schedule)


def _dcgm(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.dcgm.collector import DcgmCollector

    yield DcgmCollector(
        endpoint=config.dcgm_endpoint,
        fields=config.dcgm_fields,
        inventory=shared.inventory,
        schedule=schedule,
    )


def _rdma(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.network import DeviceFilter
    from rankwatch_agent.sources.rdma.collector import RdmaCollector

    device_filter = DeviceFilter(include=config.rdma_include, exclude=config.rdma_exclude)
    yield RdmaCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=schedule)


def _ethtool(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.ethtool.collector import EthtoolCollector
    from rankwatch_agent.sources.network import DeviceFilter

    device_filter = DeviceFilter(include=config.network_include, exclude=config.network_exclude)
    yield EthtoolCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=schedule)


def _affinity(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.topology.affinity import AffinityCollector

    yield AffinityCollector(sysfs=config.sysfs, inventory=shared.inventory, schedule=schedule)


def _pods(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.attribution.pods import PodsCollector

    yield PodsCollector(socket=config.kubelet_socket, inventory=shared.inventory, schedule=schedule)


def _slurm(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.attribution.slurm import SlurmCollector

    yield SlurmCollector(
        job_map=config.slurm_job_map, procfs=config.procfs, inventory=shared.inventory, schedule=schedule
    )


_BUILDERS: Mapping[str, _Builder] = MappingProxyType(
    {
        "ranks": _ranks,
        "collectives": _collectives,
        "nccl_ras": _nccl_ras,
        "incidents": _incidents,
        "evidence": _evidence,
        "traces": _traces,
        "trackers": _trackers,
        "cost": _cost,
        "host": _host,
        "clock": _clock,
        "network": _network,
        "tcp": _tcp,
        "disk": _disk,
        "processes": _processes,
        "checkpoints": _checkpoints,
        "preemption": _preemption,
        "mounts": _mounts,
        "rdma": _rdma,
        "ethtool": _ethtool,
        "gpu": _gpu,
        "gpu_driver": _gpu_driver,
        "xid": _xid,
        "kernel_log": _kernel_log,
        "affinity": _affinity,
        "dcgm": _dcgm,
        "pods": _pods,
        "slurm": _slurm,
    }
)
