"""CPU and memory of another process, from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .result import BenchError

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
    """The resources of a process and its descendants, added up."""

    cpu_seconds: float
    """Used so far by the living processes; the CPU time of a child that ended is lost."""
    resident_bytes: int
    """Pages that two of them share count twice."""
    proportional_bytes: int
    """Shared pages divided among those that share them (PSS)."""
    threads: int
    file_descriptors: int
    processes: int


def footprint(pid: int, procfs: Path = Path("/proc")) -> Footprint:
    """Resources of the process and all its descendants. A descendant that ends meanwhile does not count.

    Raises BenchError if the process itself is gone.
    """
    parts = [_footprint(pid, procfs)]
    for child in _descendants(pid, procfs):
        with suppress(BenchError):
            parts.append(_footprint(child, procfs))
    return Footprint(*(sum(values) for values in zip(*parts, strict=True)))


def _footprint(pid: int, procfs: Path) -> Footprint:
    """Resources of one process; raises BenchError if it is gone."""
    status = _status(pid, procfs)
    try:
        return Footprint(
            cpu_seconds=cpu_seconds(pid, procfs),
            resident_bytes=int(status["VmRSS"]) * 1024,
            proportional_bytes=_proportional_bytes(pid, procfs),
            threads=int(status["Threads"]),
            file_descriptors=len(list((procfs / str(pid) / "fd").iterdir())),
            processes=1,
        )
    except (KeyError, OSError) as error:  # a process that ends loses its memory and files first
        raise BenchError(f"could not read the resources of process {pid}: it has ended") from error


def _descendants(pid: int, procfs: Path) -> list[int]:
    """Children of all threads, and theirs. A thread or process that ends meanwhile has none."""
    found: list[int] = []
    try:
        threads = sorted((procfs / str(pid) / "task").iterdir())
    except OSError:
        return found
    for thread in threads:
        with suppress(BenchError):
            for child in map(int, _read(thread / "children").split()):
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
