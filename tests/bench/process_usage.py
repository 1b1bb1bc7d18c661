"""CPU and memory of another process, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

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
    lines = _read(procfs / str(pid) / "status").splitlines()
    kib = {name: text.split()[0] for name, _, text in (line.partition(":") for line in lines) if text.strip()}
    return int(kib["VmRSS"]) * 1024, int(kib["VmHWM"]) * 1024


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BenchError(f"could not read {path}: {error.strerror}") from error
