"""The collectors, one source per file; this module holds the explicit list of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rankwatch_agent.collection import Collector
from rankwatch_agent.config import AgentConfig


def build_collectors(config: AgentConfig) -> list[Collector]:
    """The collectors that the configuration enables; each module is imported only where it is used."""
    return [collector for name in config.enabled_collectors() for collector in _BUILDERS[name](config)]


def _ranks(config: AgentConfig) -> list[Collector]:
    from rankwatch_agent.collectors.ranks import RanksCollector

    schedule = config.schedule("ranks")
    return [
        RanksCollector(
            directory=config.directory,
            interval_seconds=schedule.interval_seconds,
            deadline_seconds=schedule.deadline_seconds,
            retention_seconds=config.retention_seconds,
            max_runs=config.max_runs,
            max_names=config.max_names,
        )
    ]


def _collectives(config: AgentConfig) -> list[Collector]:
    from rankwatch_agent.collectors.collectives import CollectivesCollector

    schedule = config.schedule("collectives")
    return [
        CollectivesCollector(
            directory=config.directory,
            interval_seconds=schedule.interval_seconds,
            deadline_seconds=schedule.deadline_seconds,
            max_names=config.max_names,
        )
    ]


def _host(config: AgentConfig) -> list[Collector]:
    from rankwatch_agent.collectors.host import HostCollector

    return [HostCollector(procfs=config.procfs, schedule=config.schedule("host"))]


def _network(config: AgentConfig) -> list[Collector]:
    from rankwatch_agent.collectors.interface_choice import InterfaceChoice
    from rankwatch_agent.collectors.network import NetworkCollector

    choice = InterfaceChoice(include=config.network_include, exclude=config.network_exclude)
    return [
        NetworkCollector(
            procfs=config.procfs, sysfs=config.sysfs, choice=choice, schedule=config.schedule("network")
        )
    ]


def _tcp(config: AgentConfig) -> list[Collector]:
    from rankwatch_agent.collectors.tcp import TcpCollector

    return [TcpCollector(procfs=config.procfs, schedule=config.schedule("tcp"))]


def _disk(config: AgentConfig) -> list[Collector]:
    from rankwatch_agent.collectors.disk import DiskCollector

    # One each: a file system that hangs costs only the series of its own path.
    return [
        DiskCollector(path=path, rootfs=config.rootfs, procfs=config.procfs, schedule=config.schedule("disk"))
        for path in dict.fromkeys(config.checkpoint_paths)
    ]


_BUILDERS: Mapping[str, Callable[[AgentConfig], list[Collector]]] = MappingProxyType(
    {
        "ranks": _ranks,
        "collectives": _collectives,
        "host": _host,
        "network": _network,
        "tcp": _tcp,
        "disk": _disk,
    }
)
