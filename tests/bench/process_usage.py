"""CPU and memory of another process, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from .errors import BenchError

MIB = 1 << 20


def cpu_seconds(pid: int, procfs: Path = Path("/proc")) -> float:
    """CPU time used so far, user and system; the kernel counts in ticks of usually 10 ms."""
    text = _read(procfs / str(pid) / "stat")
    # The command name, in parentheses, may hold spaces and parentheses; what follows does not.
    fields = text.rpartition(")")[2].split()
    utime, stime = int(fields[11]), int(fields[12])  # fields 14 and 15 of proc(5), counted from 3
    return (utime + stime) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int, procfs: Path = Path("/proc")) -> tuple[int, int]:
    """Resident memory now and at its peak."""
    kib = _status(pid, procfs)
    return int(kib["VmRSS"]) * 1024, int(kib["VmHWM"]) * 1024


class Footprint(NamedTuple):
    """What a process and its children hold, added up."""

    cpu_seconds: float
    """Used so far by the processes that live now; what a child that ended had used is its parent's."""
    resident_bytes: int
    """Pages that two of them share count twice."""
    proportional_bytes: int
    """Shared pages divided among those that share them (PSS)."""
    threads: int
    file_descriptors: int
    processes: int


def footprint(pid: int, procfs: Path = Path("/proc")) -> Footprint:
    """Of the process and all its descendants."""
    family = [pid, *_descendants(pid, procfs)]
    status = [_status(each, procfs) for each in family]
    return Footprint(
        cpu_seconds=sum(cpu_seconds(each, procfs) for each in family),
        resident_bytes=sum(int(each["VmRSS"]) for each in status) * 1024,
        proportional_bytes=sum(_proportional_bytes(each, procfs) for each in family),
        threads=sum(int(each["Threads"]) for each in status),
        file_descriptors=sum(1 for each in family for _ in (procfs / str(each) / "fd").iterdir()),
        processes=len(family),
    )


def _descendants(pid: int, procfs: Path) -> list[int]:
    found: list[int] = []
    for task in sorted((procfs / str(pid) / "task").iterdir()):
        for child in map(int, _read(task / "children").split()):
            found += [child, *_descendants(child, procfs)]
    return found


def _proportional_bytes(pid: int, procfs: Path) -> int:
    for line in _read(procfs / str(pid) / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"could not read the proportional memory of process {pid}")


def _status(pid: int, procfs: Path) -> dict[str, str]:
    lines = _read(procfs / str(pid) / "status").splitlines()
    return {
        name: text.split()[0] for name, _, text in (line.partition(":") for line in lines) if text.strip()
    }


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BenchError(f"could not read {path}: {error.strerror}") from error
