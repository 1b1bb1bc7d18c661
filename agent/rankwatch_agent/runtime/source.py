"""The list of collectors, and how a source declares the collectors of a name: by the function that builds
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from rankwatch_agent.runtime import plugins
from rankwatch_agent.runtime.collector import Collector, Schedule

if TYPE_CHECKING:
    from rankwatch_agent.runtime.config import AgentConfig

OURS = {
    "ranks": ".collectors.training",
    "collectives": ".collectors.training",
    "nccl_ras": ".sources.nccl_ras.collector",
    "incidents": ".collectors.training",
    "evidence": ".collectors.training",
    "trackers": ".collectors.training",
    "cost": ".collectors.training",
    "host": ".sources.host",
    "clock": ".sources.clock",
    "network": ".sources.network",
    "tcp": ".sources.tcp",
    "rdma": ".sources.rdma",
    "ethtool": ".sources.ethtool",
    "disk": ".sources.disk",
    "processes": ".sources.process_table",
    "preemption": ".sources.preemption",
    "nvrx": ".sources.nvrx",
    "mounts": ".sources.mounts",
    "gpu": ".sources.gpu.collector",
    "gpu_driver": ".sources.gpu.collector",
    "kernel_log": ".sources.kernel_log",
    "xid": ".sources.xid",
    "dcgm": ".sources.dcgm",
    "affinity": ".sources.affinity",
    "pods": ".sources.pods",
    "slurm": ".sources.slurm",
}
"""Our collectors by name, and the module that declares each: a `source` of the same name."""
COLLECTORS: Mapping[str, str] = OURS | plugins.added(plugins.SOURCES) | OURS
"""All of them, ours first, with those that other distributions add. Nobody takes a name of ours."""

Build = Callable[["AgentConfig", Any, Schedule], Iterator[Collector]]


class Source(NamedTuple):
    """How one name in COLLECTORS becomes collectors: none, one, or several."""

    schedule: Schedule
    """The default. Prometheus commonly scrapes every 15 s; more often pays for ranks only."""
    build: Build
    """From the settings, what the collectors of an agent share, and the schedule in force."""


def source(*, interval_seconds: float, deadline_seconds: float) -> Callable[[Build], Source]:
    """Declare, by the function that builds the collectors of a name, their default schedule."""
    schedule = Schedule(interval_seconds, deadline_seconds)
    return lambda build: Source(schedule, build)


def source_of(collector: str) -> Source:
    """Import the module of a collector and return what it declares. Raises UserError for one that was added
    and cannot be loaded."""
    name = COLLECTORS[collector]
    module = import_module(name, "rankwatch_agent") if name.startswith(".") else plugins.load(name)
    found: Source = getattr(module, collector)
    return found
