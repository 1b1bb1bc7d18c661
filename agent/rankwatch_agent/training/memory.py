"""The memory of a rank: resident memory of its process, and what torch's allocator holds on the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rankwatch.blackbox.records import AllocatorNow
from rankwatch_agent.runtime.collector import Series, sample

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESIDENT_FIELD = 1


def resident_bytes(procfs: Path, pid: int) -> int | None:
    """Resident memory of a process; None where it is gone or hidden."""
    try:
        return int((procfs / str(pid) / "statm").read_bytes().split()[_RESIDENT_FIELD]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def memory_series(
    key: tuple[str, str], resident: int | None, allocator: AllocatorNow | None
) -> Iterator[Series]:
    """The series of one rank; none of what is not known."""
    if resident is not None:
        yield sample("rankwatch_rank_resident_memory_bytes", key, resident)
    if allocator is None:
        return
    for name, value in (
        ("rankwatch_rank_gpu_memory_allocated_bytes", allocator.allocated),
        ("rankwatch_rank_gpu_memory_reserved_bytes", allocator.reserved),
        ("rankwatch_rank_gpu_memory_peak_bytes", allocator.peak),
        ("rankwatch_rank_gpu_memory_retries_total", allocator.retries),
        ("rankwatch_rank_gpu_memory_failures_total", allocator.out_of_memory),
    ):
        yield sample(name, key, value)
