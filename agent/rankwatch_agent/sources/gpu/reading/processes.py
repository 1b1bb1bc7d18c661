"""Processes with a compute context on a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from rankwatch.conventions import metric
from rankwatch_agent.sources.gpu.protocol import Sample
from rankwatch_agent.sources.gpu.reading.device import Device
from rankwatch_agent.sources.gpu.reading.limits import MEMORY_BYTES

_PROCESSES = metric("rankwatch_gpu_processes").name
_MEMORY = metric("rankwatch_gpu_process_memory_bytes").name
MOST_PROCESSES = 128
"""Processes of one GPU that are told apart; they are counted beyond it."""


def read(gpu: Device) -> Iterable[Sample]:
    """How many, and the memory of each where the driver tells it."""
    found = gpu.ask("processes", pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
    if found is None:
        return
    memory: dict[int, float | None] = {}
    for process in found:
        # one process may have a context in several MIG instances: its memory is the sum
        used, before = process.usedGpuMemory, memory.get(process.pid)
        memory[process.pid] = before if used is None else used + (before or 0)
    yield gpu.sample(_PROCESSES, len(memory))
    told = dict(sorted(memory.items())[:MOST_PROCESSES])
    gpu.pids = tuple(told)
    for pid, used in told.items():
        yield from gpu.checked(_MEMORY, "process_memory", used, MEMORY_BYTES, str(pid))
