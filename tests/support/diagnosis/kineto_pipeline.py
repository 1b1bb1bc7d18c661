"""Traces of a pipeline on GPUs: stages that send and receive with NCCL, replicas that reduce gradients."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.diagnosis.kineto import Groups, Kernel, Step, TraceForm, write_files

_SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_SENT, _RECEIVED, _REDUCED = 28, 32, 20
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


class _Run:
    """The job as it is computed; ranks are numbered replica by replica in each stage."""

    def __init__(self, job: PipelineJob) -> None:
        self.job = job
        self.chance = random.Random(job.seed)
        self.now = [1_000.0] * job.ranks
        self.lines: list[list[Step]] = [[] for _ in range(job.ranks)]

    def rank(self, stage: int, replica: int) -> int:
        return stage * self.job.replicas + replica

    def pipeline(self, replica: int) -> tuple[str, Sequence[int]]:
        job = self.job
        return f"{1 + replica}", [self.rank(stage, replica) for stage in range(job.stages)]

    def stage(self, stage: int) -> tuple[str, Sequence[int]]:
        job = self.job
        return f"{50 + stage}", [self.rank(stage, replica) for replica in range(job.replicas)]

    def run(self) -> None:
        job = self.job
        for number in range(job.steps):
            for rank, line in enumerate(self.lines):
                line.append(Step(number, self.now[rank]))
                self.now[rank] += 5.0
            for replica in range(job.replicas):
                self._passes(replica, range(job.stages), "forward")
                self._passes(replica, range(job.stages - 1, -1, -1), "backward")
            for stage in range(job.stages):
                self._reduce(stage)

    def _passes(self, replica: int, stages: Sequence[int], phase: str) -> None:
        sent: dict[tuple[int, int], float] = {}
        for at, stage in enumerate(stages):
            rank = self.rank(stage, replica)
            for microbatch in range(self.job.microbatches):
                if at:
                    arrived = max(sent[at - 1, microbatch], self.now[rank]) + self.job.message
                    self._message(rank, replica, "recv", self.now[rank], arrived, phase)
                    self.now[rank] = arrived + 2.0
                self._compute(rank, stage, phase)
                if at < len(stages) - 1:
                    sent[at, microbatch] = self.now[rank]
                    end = self.now[rank] + self.job.message
                    self._message(rank, replica, "send", self.now[rank], end, phase)

    def _compute(self, rank: int, stage: int, phase: str) -> None:
        job = self.job
        factor = job.slow_ranks.get(rank, 1.0) * job.slow_stages.get(stage, 1.0)
        for index in range(job.kernels * (2 if phase == "backward" else 1)):
            length = job.kernel * factor * max(0.2, self.chance.gauss(1.0, job.noise))
            begin = self.now[rank]
            self._step(rank).kernels.append(Kernel(f"gemm_{index}", phase, begin, begin + length))
            self.now[rank] = begin + length + 2.0

    def _message(self, rank: int, replica: int, what: str, begin: float, end: float, phase: str) -> None:
        stream = _SENT if what == "send" else _RECEIVED
        kernel = Kernel(_SEND_RECEIVE, phase, begin, end, stream, self.pipeline(replica), 1_000_000, what)
        self._step(rank).kernels.append(kernel)

    def _reduce(self, stage: int) -> None:
        _, members = self.stage(stage)
        end = max(self.now[rank] for rank in members) + self.job.transfer
        for rank in members:
            begin = self.now[rank]
            kernel = Kernel(_REDUCE, "backward", begin, end, _REDUCED, self.stage(stage), 20_000_000)
            self._step(rank).kernels.append(kernel)
            self._step(rank).kernels.append(Kernel("adam", "optimizer", end + 2.0, end + 402.0))
            self.now[rank] = end + 405.0

    def _step(self, rank: int) -> Step:
        return self.lines[rank][-1]


def pipeline_steps(job: PipelineJob) -> list[list[Step]]:
    """By rank: its steps with all kernels."""
    run = _Run(job)
    run.run()
    return run.lines


def write_pipeline_traces(directory: Path, job: PipelineJob, form: TraceForm | None = None) -> list[Path]:
    """A file per rank, with the groups of a device mesh."""
    run = _Run(job)
    run.run()
    groups: list[Groups] = []
    for rank in range(job.ranks):
        stage, replica = divmod(rank, job.replicas)
        pipeline, data = run.pipeline(replica), run.stage(stage)
        everyone = ("0", "default_pg", range(job.ranks))
        groups.append([everyone, (pipeline[0], "mesh_pp", pipeline[1]), (data[0], "mesh_dp", data[1])])
    return write_files(directory, run.lines, groups, form)
