"""Traces of jobs on GPUs that split their model.

The stages of a pipeline send and receive with NCCL, and its replicas reduce gradients. Of sharded parameters
(FSDP), a layer is gathered while the one before it computes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.diagnosis.kineto import Groups, Kernel, Step, write_files

_SEND_RECEIVE, _REDUCE, _GATHER, _SCATTER = (
    f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"
    for name in (
        *("SendRecv", "AllReduce_Sum_f32_RING_LL", "AllGather_RING_LL"),
        "ReduceScatter_Sum_bf16_RING_LL",
    )
)
_SENT, _RECEIVED, _REDUCED, _SHARDED = 28, 32, 20, 22
"""Streams."""


@dataclass(kw_only=True)
class PipelineJob:
    """All forward passes of a step, then all backward passes; times in microseconds."""

    stages: int = 4
    replicas: int = 4
    microbatches: int = 6
    steps: int = 6
    kernels: int = 4
    """Of a forward pass; a backward pass takes twice as long."""
    kernel: float = 300.0
    message: float = 60.0
    transfer: float = 800.0
    noise: float = 0.004
    slow_ranks: dict[int, float] = field(default_factory=dict)
    slow_stages: dict[int, float] = field(default_factory=dict)
    seed: int = 3

    @property
    def ranks(self) -> int:
        return self.stages * self.replicas


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
    """A job as it is computed."""

    def __init__(self, ranks: int, seed: int, noise: float) -> None:
        self._chance, self._noise = random.Random(seed), noise
        self.now = [1_000.0] * ranks
        self.lines: list[list[Step]] = [[] for _ in range(ranks)]

    def _begin_step(self, number: int) -> None:
        for now, line in zip(self.now, self.lines, strict=True):
            line.append(Step(number, now))

    def _add(self, rank: int, kernel: Kernel) -> None:
        self.lines[rank][-1].kernels.append(kernel)

    def _length(self, usual: float) -> float:
        return usual * max(0.2, self._chance.gauss(1.0, self._noise))


class _Pipeline(_Run):
    """Ranks are numbered replica by replica in each stage."""

    def __init__(self, job: PipelineJob) -> None:
        super().__init__(job.ranks, job.seed, job.noise)
        self.job = job
        for number in range(job.steps):
            self._begin_step(number)
            self.now = [each + 5.0 for each in self.now]
            for replica in range(job.replicas):
                self._passes(replica, range(job.stages), "forward")
                self._passes(replica, range(job.stages - 1, -1, -1), "backward")
            for stage in range(job.stages):
                self._reduce(stage)

    def rank(self, stage: int, replica: int) -> int:
        return stage * self.job.replicas + replica

    def pipeline(self, replica: int) -> tuple[str, Sequence[int]]:
        return f"{1 + replica}", [self.rank(stage, replica) for stage in range(self.job.stages)]

    def stage(self, stage: int) -> tuple[str, Sequence[int]]:
        return f"{50 + stage}", [self.rank(stage, replica) for replica in range(self.job.replicas)]

    def _passes(self, replica: int, stages: Sequence[int], phase: str) -> None:
        sent: dict[tuple[int, int], float] = {}
        for at, stage in enumerate(stages):
            rank = self.rank(stage, replica)
            for microbatch in range(self.job.microbatches):
                if at:
                    arrived = max(sent[at - 1, microbatch], self.now[rank]) + self.job.message
                    self._message(rank, replica, "recv", arrived, phase)
                    self.now[rank] = arrived + 2.0
                self._compute(rank, stage, phase)
                if at < len(stages) - 1:
                    sent[at, microbatch] = self.now[rank]
                    self._message(rank, replica, "send", self.now[rank] + self.job.message, phase)

    def _compute(self, rank: int, stage: int, phase: str) -> None:
        job = self.job
        factor = job.slow_ranks.get(rank, 1.0) * job.slow_stages.get(stage, 1.0)
        for index in range(job.kernels * (2 if phase == "backward" else 1)):
            begin, length = self.now[rank], self._length(job.kernel * factor)
            self._add(rank, Kernel(f"gemm_{index}", phase, begin, begin + length))
            self.now[rank] = begin + length + 2.0

    def _message(self, rank: int, replica: int, what: str, end: float, phase: str) -> None:
        stream, group = _SENT if what == "send" else _RECEIVED, self.pipeline(replica)
        self._add(rank, Kernel(_SEND_RECEIVE, phase, self.now[rank], end, stream, group, 1_000_000, what))

    def _reduce(self, stage: int) -> None:
        group = self.stage(stage)
        end = max(self.now[rank] for rank in group[1]) + self.job.transfer
        for rank in group[1]:
            self._add(rank, Kernel(_REDUCE, "backward", self.now[rank], end, _REDUCED, group, 20_000_000))
            self._add(rank, Kernel("adam", "optimizer", end + 2.0, end + 402.0))
            self.now[rank] = end + 405.0


class _Sharded(_Run):
    def __init__(self, job: ShardedJob) -> None:
        super().__init__(job.ranks, job.seed, job.noise)
        self.job = job
        self.stream = [1_000.0] * job.ranks
        """When the stream of communication is free."""
        for number in range(job.steps):
            self._begin_step(number)
            self._pass("forward", 1.0)
            self._pass("backward", 2.0)
            for rank in range(job.ranks):
                begin = max(self.now[rank], self.stream[rank]) + 2.0
                self._add(rank, Kernel("adam", "optimizer", begin, begin + 500.0))
                self.now[rank] = self.stream[rank] = begin + 505.0

    def _pass(self, phase: str, factor: float) -> None:
        layers = self.job.layers
        gathered = self._meet(_GATHER, "_allgather_base", list(self.now), phase)
        for layer in range(layers):
            begins = [max(now, gathered) + 2.0 for now in self.now]
            if layer < layers - 1:
                gathered = self._meet(_GATHER, "_allgather_base", begins, phase)
            for rank, begin in enumerate(begins):
                self.now[rank] = self._compute(rank, layer, begin, phase, factor)
            if phase == "backward":
                self._meet(_SCATTER, "_reduce_scatter_base", list(self.now), phase)

    def _compute(self, rank: int, layer: int, begin: float, phase: str, factor: float) -> float:
        length = self._length(factor * self.job.layer * self.job.slow.get(rank, 1.0))
        for part in range(4):
            at = begin + part * length / 4
            self._add(rank, Kernel(f"gemm_{layer}_{part}", phase, at, at + length / 4 - 1.0))
        return begin + length

    def _meet(self, kernel: str, name: str, ready: Sequence[float], phase: str) -> float:
        begins = [max(each, free) for each, free in zip(ready, self.stream, strict=True)]
        end = max(begins) + self.job.gather
        group = ("0", range(self.job.ranks))
        for rank, begin in enumerate(begins):
            self._add(rank, Kernel(kernel, phase, begin, end, _SHARDED, group, 3_000_000, name))
        self.stream = [end] * self.job.ranks
        return end


def pipeline_steps(job: PipelineJob) -> list[list[Step]]:
    """By rank: its steps with all kernels."""
    return _Pipeline(job).lines


def sharded_steps(job: ShardedJob) -> list[list[Step]]:
    """By rank: its steps with all kernels."""
    return _Sharded(job).lines


def write_pipeline_traces(directory: Path, job: PipelineJob) -> list[Path]:
    """A file per rank, with the groups of a device mesh."""
    run = _Pipeline(job)
    groups: list[Groups] = []
    for rank in range(job.ranks):
        stage, replica = divmod(rank, job.replicas)
        pipeline, data = run.pipeline(replica), run.stage(stage)
        everyone = ("0", "default_pg", range(job.ranks))
        groups.append([everyone, (pipeline[0], "mesh_pp", pipeline[1]), (data[0], "mesh_dp", data[1])])
    return write_files(directory, run.lines, groups)


def write_sharded_traces(directory: Path, job: ShardedJob) -> list[Path]:
    """A file per rank."""
    everyone = ("0", "default_pg", range(job.ranks))
    return write_files(directory, sharded_steps(job), [[everyone]] * job.ranks)
