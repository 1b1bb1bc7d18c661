"""The collectors, one source per file; this module holds the explicit list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rankwatch_agent.hardware import Hardware
from rankwatch_agent.runtime.collector import Collector
from rankwatch_agent.runtime.config import AgentConfig


def build_collectors(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    """The collectors that the configuration enables; each module is imported only where it is used."""
    return [
        collector for name in config.enabled_collectors() for collector in _BUILDERS[name](config, hardware)
    ]


def _ranks(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.training.collector import RanksCollector

    schedule = config.schedule("ranks")
    return [
        RanksCollector(
            directory=config.directory,
            interval_seconds=schedule.interval_seconds,
            deadline_seconds=schedule.deadline_seconds,
            retention_seconds=config.retention_seconds,
            max_runs=config.max_runs,
            max_names=config.max_names,
            conditions=hardware.run_conditions,
        )
    ]


def _collectives(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.training.collectives.collector import CollectivesCollector

    schedule = config.schedule("collectives")
    return [
        CollectivesCollector(
            directory=config.directory,
            # It looks each second whether a run is suspect; the interval is that of healthy ranks.
            interval_seconds=min(1.0, schedule.interval_seconds),
            pull_seconds=schedule.interval_seconds,
            deadline_seconds=schedule.deadline_seconds,
            max_names=config.max_names,
            conditions=hardware.run_conditions,
        )
    ]


def _nccl_ras(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.nccl_ras.collector import NcclRasCollector

    return [
        NcclRasCollector(
            addresses=config.nccl_ras_address,
            directory=config.directory,
            schedule=config.schedule("nccl_ras"),
        )
    ]


def _incidents(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.incidents.collector import IncidentsCollector

    return [
        IncidentsCollector(
            conditions=hardware.run_conditions,
            board=hardware.incidents,
            stall_seconds=config.stall_seconds,
            schedule=config.schedule("incidents"),
        )
    ]


def _evidence(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.incidents.evidence import build_evidence

    return [build_evidence(config, board=hardware.incidents, pages=hardware.pages)]


def _host(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.host import HostCollector

    return [HostCollector(procfs=config.procfs, schedule=config.schedule("host"))]


def _network(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.network import DeviceFilter, NetworkCollector

    device_filter = DeviceFilter(include=config.network_include, exclude=config.network_exclude)
    return [
        NetworkCollector(
            procfs=config.procfs,
            sysfs=config.sysfs,
            device_filter=device_filter,
            schedule=config.schedule("network"),
        )
    ]


def _tcp(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.tcp import TcpCollector

    return [TcpCollector(procfs=config.procfs, schedule=config.schedule("tcp"))]


def _disk(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.disk import DiskCollector

    # One each: a file system that hangs costs only the series of its own path.
    return [
        DiskCollector(path=path, rootfs=config.rootfs, procfs=config.procfs, schedule=config.schedule("disk"))
        for path in dict.fromkeys(config.checkpoint_paths)
    ]


def _gpu(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.gpu.collector import GpuCollector
    from rankwatch_agent.sources.gpu.pci import PciGpus

    return [
        GpuCollector(
            driver=hardware.driver,
            pci=PciGpus(config.sysfs),
            inventory=hardware.inventory,
            xids=hardware.xids,
            schedule=config.schedule("gpu"),
        )
    ]


def _gpu_driver(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.gpu.collector import GpuDriverCollector
    from rankwatch_agent.sources.gpu.pci import PciGpus

    pci = PciGpus(config.sysfs)
    return [GpuDriverCollector(driver=hardware.driver, pci=pci, schedule=config.schedule("gpu_driver"))]


def _kernel_log(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.kernel_log.collector import KernelLogCollector

    return [
        KernelLogCollector(
            path=config.kernel_log,
            procfs=config.procfs,
            inventory=hardware.inventory,
            xids=hardware.xids,
            schedule=config.schedule("kernel_log"),
        )
    ]


def _xid(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.xid.collector import XidCollector

    return [XidCollector(inventory=hardware.inventory, xids=hardware.xids, schedule=config.schedule("xid"))]


def _dcgm(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.dcgm.collector import DcgmCollector

    return [
        DcgmCollector(
            endpoint=config.dcgm_endpoint,
            fields=config.dcgm_fields,
            inventory=hardware.inventory,
            schedule=config.schedule("dcgm"),
        )
    ]


def _rdma(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.network import DeviceFilter
    from rankwatch_agent.sources.rdma.collector import RdmaCollector

    device_filter = DeviceFilter(include=config.rdma_include, exclude=config.rdma_exclude)
    return [RdmaCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=config.schedule("rdma"))]


def _ethtool(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.ethtool.collector import EthtoolCollector
    from rankwatch_agent.sources.network import DeviceFilter

    device_filter = DeviceFilter(include=config.network_include, exclude=config.network_exclude)
    return [
        EthtoolCollector(sysfs=config.sysfs, device_filter=device_filter, schedule=config.schedule("ethtool"))
    ]


def _affinity(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.topology.affinity import AffinityCollector

    return [
        AffinityCollector(
            sysfs=config.sysfs, inventory=hardware.inventory, schedule=config.schedule("affinity")
        )
    ]


def _pods(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.attribution.pods import PodsCollector

    return [
        PodsCollector(
            socket=config.kubelet_socket, inventory=hardware.inventory, schedule=config.schedule("pods")
        )
    ]


def _slurm(config: AgentConfig, hardware: Hardware) -> list[Collector]:
    from rankwatch_agent.sources.attribution.slurm import SlurmCollector

    return [
        SlurmCollector(
            job_map=config.slurm_job_map,
            procfs=config.procfs,
            inventory=hardware.inventory,
            schedule=config.schedule("slurm"),
        )
    ]


_BUILDERS: Mapping[str, Callable[[AgentConfig, Hardware], list[Collector]]] = MappingProxyType(
    {
        "ranks": _ranks,
        "collectives": _collectives,
        "nccl_ras": _nccl_ras,
        "incidents": _incidents,
        "evidence": _evidence,
        "host": _host,
        "network": _network,
        "tcp": _tcp,
        "disk": _disk,
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
