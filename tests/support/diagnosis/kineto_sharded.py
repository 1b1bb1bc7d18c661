"""Traces of a job with sharded parameters (FSDP): a layer is gathered while the one before it computes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.diagnosis.kineto import Kernel, Step, write_files

_STREAM = 22
_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(kw_only=True)
class ShardedJob:
    """Times in microseconds."""

    ranks: int = 8
    steps: int = 6
    layers: int = 8
    layer: float = 900.0
    """Of a forward pass; a backward pass takes twice as long."""
    gather: float = 300.0
    noise: float = 0.004
    slow: dict[int, float] = field(default_factory=dict)
    seed: int = 5


class _Run:
    def __init__(self, job: ShardedJob) -> None:
        self.job = job
        self.chance = random.Random(job.seed)
        self.now = [1_000.0] * job.ranks
        self.stream = [1_000.0] * job.ranks
        """When the stream of communication is free."""
        self.lines: list[list[Step]] = [[] for _ in range(job.ranks)]

    def run(self) -> None:
        job = self.job
        for number in range(job.steps):
            for rank, line in enumerate(self.lines):
                line.append(Step(number, self.now[rank]))
            self._pass("forward", 1.0)
            self._pass("backward", 2.0)
            for rank, line in enumerate(self.lines):
                begin = max(self.now[rank], self.stream[rank]) + 2.0
                line[-1].kernels.append(Kernel("adam", "optimizer", begin, begin + 500.0))
                self.now[rank] = self.stream[rank] = begin + 505.0

    def _pass(self, phase: str, factor: float) -> None:
        layers = self.job.layers
        gathered = self._meet(_GATHER, "_allgather_base", list(self.now), phase)
        for layer in range(layers):
            begins = [max(now, end) + 2.0 for now, end in zip(self.now, gathered, strict=True)]
            if layer < layers - 1:
                gathered = self._meet(_GATHER, "_allgather_base", begins, phase)
            for rank, begin in enumerate(begins):
                self.now[rank] = self._compute(rank, layer, begin, phase, factor)
            if phase == "backward":
                self._meet(_SCATTER, "_reduce_scatter_base", list(self.now), phase)

    def _compute(self, rank: int, layer: int, begin: float, phase: str, factor: float) -> float:
        job = self.job
        length = factor * job.layer * job.slow.get(rank, 1.0) * max(0.2, self.chance.gauss(1.0, job.noise))
        for part in range(4):
            at = begin + part * length / 4
            kernel = Kernel(f"gemm_{layer}_{part}", phase, at, at + length / 4 - 1.0)
            self.lines[rank][-1].kernels.append(kernel)
        return begin + length

    def _meet(self, kernel: str, name: str, ready: Sequence[float], phase: str) -> list[float]:
        begins = [max(each, free) for each, free in zip(ready, self.stream, strict=True)]
        end = max(begins) + self.job.gather
        group = ("0", range(self.job.ranks))
        for rank, begin in enumerate(begins):
            found = Kernel(kernel, phase, begin, end, _STREAM, group, 3_000_000, name)
            self.lines[rank][-1].kernels.append(found)
        self.stream = [end] * self.job.ranks
        return [end] * self.job.ranks


def sharded_steps(job: ShardedJob) -> list[list[Step]]:
    """By rank: its steps with all kernels."""
    run = _Run(job)
    run.run()
    return run.lines


def write_sharded_traces(directory: Path, job: ShardedJob) -> list[Path]:
    """A file per rank."""
    everyone = ("0", "default_pg", range(job.ranks))
    return write_files(directory, sharded_steps(job), [[everyone]] * job.ranks)
