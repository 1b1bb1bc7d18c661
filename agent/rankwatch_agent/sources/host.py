"""Collector `host`: CPU time, memory, OOM kills and pressure of the host, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, collect_parts, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.kernel_files import Table, parse_count, parse_fields, parse_kernel_file
from rankwatch_agent.sources.shared import NodeShared

_MEMORY = {
    "MemTotal": metric("rankwatch_host_memory_total_bytes"),
    "MemAvailable": metric("rankwatch_host_memory_available_bytes"),
}

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Columns of the cpu line (proc(5)). The two guest columns behind them are already part of user and nice."""
RESOURCES = ("cpu", "memory", "io")


@source(interval_seconds=5.0, deadline_seconds=5.0)
def host(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield HostCollector(procfs=config.procfs, schedule=schedule)


class HostCollector:
    """Reads one file per group of series. `ticks_per_second` is the kernel's USER_HZ."""

    name = "host"

    def __init__(self, *, procfs: Path, schedule: Schedule, ticks_per_second: int | None = None) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._ticks_per_second = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read all files. Raises what collect_parts raises."""
        pressure = (lambda resource=resource: self._pressure(resource) for resource in RESOURCES)
        parts = (self._cpu, self._memory, self._oom_kills, *pressure)
        return collect_parts(self.name, parts, self._log_limit)

    def _cpu(self) -> Iterator[Series | CollectError]:
        path = self._procfs / "stat"
        times = parse_kernel_file(path, parse_stat)
        yield from times.ticks.errors(path)
        if times.cpus:
            yield sample("rankwatch_host_cpus", (), times.cpus)
        for mode, ticks in times.ticks.found.items():
            yield sample("rankwatch_host_cpu_seconds_total", (mode,), ticks / self._ticks_per_second)

    def _memory(self) -> Iterator[Series | CollectError]:
        path = self._procfs / "meminfo"
        memory = parse_kernel_file(path, parse_meminfo)
        yield from memory.errors(path)
        for name, value in memory.found.items():
            yield Series(_MEMORY[name], (), value)

    def _oom_kills(self) -> Iterable[Series]:
        kills = parse_kernel_file(self._procfs / "vmstat", parse_oom_kills)
        if kills is not None:
            yield sample("rankwatch_host_oom_kills_total", (), kills)

    def _pressure(self, resource: str) -> Iterable[Series]:
        waiting = parse_kernel_file(self._procfs / "pressure" / resource, parse_pressure)
        yield sample("rankwatch_host_pressure_waiting_seconds_total", (resource,), waiting)


class CpuTimes(NamedTuple):
    """Ticks by mode, summed over all CPUs, and the number of CPUs online."""

    ticks: Table[str, int]
    cpus: int


def parse_stat(text: str) -> CpuTimes:
    """Parse /proc/stat. Modes that an old kernel lacks are left out."""
    rows = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    total = next((row[1:] for row in rows if row[0] == "cpu"), [])
    cpus = sum(row[0].removeprefix("cpu").isdecimal() for row in rows)
    if len(total) < 4:  # the first four are as old as the file
        return CpuTimes(Table({}, ("no line of all CPUs",)), cpus)
    return CpuTimes(parse_fields(zip(CPU_MODES, total, strict=False), parse_count), cpus)


def parse_meminfo(text: str) -> Table[str, int]:
    """Parse /proc/meminfo: MemTotal, and MemAvailable from Linux 3.14 on, in bytes."""
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name: rest for name, _, rest in lines if name in _MEMORY}
    return parse_fields({"MemTotal": "", **fields}.items(), _parse_kilobytes)


def _parse_kilobytes(text: str) -> int:
    """Convert `16384 kB` to bytes; the kernel's kB has 1024."""
    number, unit = text.split()
    if unit != "kB":
        raise ValueError(f"{unit!r:.40} instead of kB")
    return parse_count(str(parse_count(number) * 1024))


def parse_oom_kills(text: str) -> int | None:
    """Parse oom_kill of /proc/vmstat; None before Linux 4.13."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return parse_count(number)
    return None


def parse_pressure(text: str) -> float:
    """Parse /proc/pressure/*: seconds in which at least one task waited (the `some` line)."""
    for line in text.splitlines():
        if line.startswith("some "):
            fields = dict(field.partition("=")[::2] for field in line.split()[1:])
            return parse_count(fields["total"]) / 1e6
    raise ValueError("the line `some` is missing")
