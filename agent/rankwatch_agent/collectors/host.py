"""CPU, load, memory, OOM kills and pressure of the host, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.collection import Collection, Series
from rankwatch_agent.collectors.parts import collect_parts
from rankwatch_agent.kernel_files import parse_kernel_file
from rankwatch_agent.supervision.log_limit import LogLimit
from rankwatch_agent.supervision.schedule import Schedule

_CPU_SECONDS = metric("rankwatch_host_cpu_seconds_total")
_CPUS = metric("rankwatch_host_cpus")
_LOAD1 = metric("rankwatch_host_load1")
_MEMORY_TOTAL = metric("rankwatch_host_memory_total_bytes")
_MEMORY_AVAILABLE = metric("rankwatch_host_memory_available_bytes")
_OOM_KILLS = metric("rankwatch_host_oom_kills_total")
_PRESSURE = metric("rankwatch_host_pressure_waiting_seconds_total")

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Columns of the cpu line (proc(5)). The two after them, guest times, are already inside user and nice."""
RESOURCES = ("cpu", "memory", "io")


class HostCollector:
    """One series set per file; `ticks_per_second` is the kernel's USER_HZ."""

    name = "host"

    def __init__(self, *, procfs: Path, schedule: Schedule, ticks_per_second: int | None = None) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._ticks_per_second = ticks_per_second or os.sysconf("SC_CLK_TCK")
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read all files; raises as collect_parts does."""
        pressure = (lambda resource=resource: self._pressure(resource) for resource in RESOURCES)
        parts = (self._cpu, self._load, self._memory, self._oom_kills, *pressure)
        return collect_parts(self.name, parts, self._log_limit)

    def _cpu(self) -> Iterable[Series]:
        times = parse_kernel_file(self._procfs / "stat", parse_stat)
        yield Series(_CPUS, (), times.cpus)
        for mode, ticks in times.ticks.items():
            yield Series(_CPU_SECONDS, (mode,), ticks / self._ticks_per_second)

    def _load(self) -> Iterable[Series]:
        yield Series(_LOAD1, (), parse_kernel_file(self._procfs / "loadavg", parse_load1))

    def _memory(self) -> Iterable[Series]:
        memory = parse_kernel_file(self._procfs / "meminfo", parse_meminfo)
        yield Series(_MEMORY_TOTAL, (), memory["MemTotal"])
        # Kernels before 3.14 do not say what is available.
        if "MemAvailable" in memory:
            yield Series(_MEMORY_AVAILABLE, (), memory["MemAvailable"])

    def _oom_kills(self) -> Iterable[Series]:
        kills = parse_kernel_file(self._procfs / "vmstat", parse_oom_kills)
        # Kernels before 4.13 do not count them.
        if kills is not None:
            yield Series(_OOM_KILLS, (), kills)

    def _pressure(self, resource: str) -> Iterable[Series]:
        waiting = parse_kernel_file(self._procfs / "pressure" / resource, parse_pressure)
        yield Series(_PRESSURE, (resource,), waiting)


class CpuTimes(NamedTuple):
    """Ticks by mode, all CPUs added, and the number of CPUs online."""

    ticks: Mapping[str, int]
    cpus: int


def parse_stat(text: str) -> CpuTimes:
    """/proc/stat; modes an old kernel does not have are left out."""
    rows = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    if not rows or rows[0][0] != "cpu" or len(rows[0]) < 5:
        raise ValueError("no line of all CPUs")
    ticks = (int(field) for field in rows[0][1:])
    return CpuTimes(dict(zip(CPU_MODES, ticks, strict=False)), len(rows) - 1)


def parse_load1(text: str) -> float:
    """/proc/loadavg: the average over one minute."""
    fields = text.split()
    if not fields:
        raise ValueError("empty")
    return float(fields[0])


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes: MemTotal, and MemAvailable where the kernel says it."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            number, unit = rest.split()
            if unit != "kB":
                raise ValueError(f"{name} in {unit!r} instead of kB")
            found[name] = int(number) * 1024
    if "MemTotal" not in found:
        raise ValueError("no MemTotal")
    return found


def parse_oom_kills(text: str) -> int | None:
    """/proc/vmstat: oom_kill, or None where the kernel does not count it."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    return None


def parse_pressure(text: str) -> float:
    """/proc/pressure/*: seconds in which at least one task waited (the `some` line, microseconds)."""
    for line in text.splitlines():
        if line.startswith("some "):
            fields = dict(field.split("=", 1) for field in line.split()[1:])
            return int(fields["total"]) / 1e6
    raise ValueError("no line that starts with some")
