"""Collectors of the node: its host, disks, networks and GPUs, and whose pods and jobs they serve."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_agent.collectors.shared import Shared
from rankwatch_agent.runtime.collector import Collector, Schedule
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.training.conditions import living_ranks


def host(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.host import HostCollector

    yield HostCollector(procfs=config.procfs, schedule=schedule)


def clock(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.clock import ClockCollector

    yield ClockCollector(schedule=schedule)


def network(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.network import DeviceFilter, NetworkCollector

    device_filter = DeviceFilter(include=config.network_include, exclude=config.network_exclude)
    yield NetworkCollector(
        procfs=config.procfs, sysfs=config.sysfs, device_filter=device_filter, schedule=schedule
    )


def tcp(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.tcp import TcpCollector

    yield TcpCollector(procfs=config.procfs, schedule=schedule)


def disk(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.disk import DiskCollector

    # One for each path: a file system that hangs costs only its own series.
    for path in dict.fromkeys(config.checkpoint_paths):
        yield DiskCollector(path=path, rootfs=config.rootfs, procfs=config.procfs, schedule=schedule)


def processes(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.process_table import ProcessesCollector

    yield ProcessesCollector(
        procfs=config.procfs,
        sysfs=config.sysfs,
        ranks=lambda: living_ranks(shared.run_conditions),
        schedule=schedule,
    )


def mounts(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.mounts import MountsCollector

    yield MountsCollector(
        procfs=config.procfs,
        rootfs=config.rootfs,
        ranks=lambda: living_ranks(shared.run_conditions),
        schedule=schedule,
    )


def preemption(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if not config.preemption_cloud:
        return
    from rankwatch_agent.sources.preemption import PreemptionCollector

    yield PreemptionCollector(cloud=config.preemption_cloud, events=shared.events, schedule=schedule)


def nvrx(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    if config.nvrx_directory is None:
        return
    from rankwatch_agent.sources.nvrx import NvrxCollector

    yield NvrxCollector(directory=config.nvrx_directory, cycles=shared.cycles, schedule=schedule)


def rdma(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.network import DeviceFilter
    from rankwatch_agent.sources.rdma.collector import RdmaCollector

    device_filter = DeviceFilter(include=config.rdma_include, exclude=config.rdma_exclude)
    yield RdmaCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=schedule)


def ethtool(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.ethtool.collector import EthtoolCollector
    from rankwatch_agent.sources.network import DeviceFilter

    device_filter = DeviceFilter(include=config.network_include, exclude=config.network_exclude)
    yield EthtoolCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=schedule)


def nccl_ras(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.nccl_ras.collector import NcclRasCollector

    yield NcclRasCollector(addresses=config.nccl_ras_address, directory=config.directory, schedule=schedule)


def gpu(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
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


def gpu_driver(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.gpu.collector import GpuDriverCollector
    from rankwatch_agent.sources.gpu.pci import PciGpus

    pci = PciGpus(config.sysfs)
    yield GpuDriverCollector(driver=shared.driver, pci=pci, sysfs=config.sysfs, schedule=schedule)


def xid(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.xid.collector import XidCollector

    yield XidCollector(inventory=shared.inventory, xids=shared.xids, schedule=schedule)


def kernel_log(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.kernel_log.collector import KernelLogCollector

    yield KernelLogCollector(
        path=config.kernel_log,
        procfs=config.procfs,
        inventory=shared.inventory,
        xids=shared.xids,
        schedule=schedule,
        events=shared.events,
    )


def dcgm(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.dcgm.collector import DcgmCollector

    yield DcgmCollector(
        endpoint=config.dcgm_endpoint,
        fields=config.dcgm_fields,
        inventory=shared.inventory,
        schedule=schedule,
    )


def affinity(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.topology.affinity import AffinityCollector

    yield AffinityCollector(sysfs=config.sysfs, inventory=shared.inventory, schedule=schedule)


def pods(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.attribution.pods import PodsCollector

    yield PodsCollector(socket=config.kubelet_socket, inventory=shared.inventory, schedule=schedule)


def slurm(config: AgentConfig, shared: Shared, schedule: Schedule) -> Iterator[Collector]:
    from rankwatch_agent.sources.attribution.slurm import SlurmCollector

    yield SlurmCollector(
        job_map=config.slurm_job_map, procfs=config.procfs, inventory=shared.inventory, schedule=schedule
    )
