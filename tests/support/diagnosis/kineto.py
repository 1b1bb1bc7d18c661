"""Traces of a data-parallel job on GPUs, event by event in the form in which Kineto writes them.

The job is computed first (when every kernel begins and ends, where a collective waits for its last member),
so the truth is known. One rank may be slow, hosts may have clocks of their own, collectives may hide behind
compute. Kineto's form is that of torch 2.13: `libkineto/src/output_json.cpp`.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

BASE_NS = 1_790_857_026_000_000_000
_COMPUTE_STREAM, _COMMUNICATION_STREAM = 7, 20
_MAIN_THREAD, _AUTOGRAD_THREAD = 4_001, 4_002
_LAUNCH_AHEAD = 150.0
"""Microseconds by which the host launches a kernel before it runs."""


@dataclass(kw_only=True)
class GpuJob:
    """The job; times in microseconds."""

    ranks: int = 4
    steps: int = 6
    first_step: int = 10
    kernels: int = 12
    """Of the forward pass; the backward pass has twice as many, the optimizer a third."""
    kernel: float = 400.0
    buckets: int = 3
    """All-reduces of gradients in a step."""
    transfer: float = 300.0
    noise: float = 0.004
    slow: dict[int, float] = field(default_factory=dict)
    """Rank -> factor of its kernels."""
    host_gap: dict[int, float] = field(default_factory=dict)
    """Rank -> time before each step in which its host launches nothing."""
    loading: dict[int, float] = field(default_factory=dict)
    """Rank -> time before each step in which its host waits for a batch."""
    blocking: bool = False
    """The ranks of a pair also reduce every layer of the forward pass, and wait for it."""
    seed: int = 7


@dataclass(kw_only=True)
class TraceForm:
    """What the profiler was told to record, and how."""

    annotate_steps: bool = True
    mark_phases: bool = True
    """With the CPU's activities: operators, launches and annotations."""
    describe: bool = True
    """Arguments of collectives."""
    distributed_info: bool = True
    closure: bool = False
    """The optimizer is handed both passes, as Lightning does."""
    padding: int = 0
    """Python functions recorded for each kernel, as `with_stack` does."""
    clocks: Sequence[float] = ()
    """By rank: seconds by which the clock of its host is ahead."""


@dataclass
class Kernel:
    """A kernel of one rank; `collective` is what it does with `group`."""

    name: str
    phase: str
    begin: float
    end: float
    stream: int = _COMPUTE_STREAM
    group: tuple[str, Sequence[int]] | None = None
    elements: int = 0
    collective: str = "allreduce"


@dataclass
class Step:
    """A step of one rank; `host_gap` and `loading` come before its first kernel."""

    number: int
    begin: float
    host_gap: float = 0.0
    loading: float = 0.0
    kernels: list[Kernel] = field(default_factory=list)


def compute_job(job: GpuJob) -> list[list[Step]]:
    """By rank: its steps with all kernels."""
    chance = random.Random(job.seed)
    now = [1_000.0] * job.ranks
    found: list[list[Step]] = [[] for _ in range(job.ranks)]
    for number in range(job.first_step, job.first_step + job.steps):
        steps = []
        for rank in range(job.ranks):
            gap, loading = job.host_gap.get(rank, 0.0), job.loading.get(rank, 0.0)
            steps.append(Step(number, now[rank], gap, loading))
            now[rank] += gap + loading + 20.0
        _forward(job, chance, steps, now)
        _backward(job, chance, steps, now)
        for rank, step in enumerate(steps):
            for index in range(max(1, job.kernels // 3)):
                now[rank] = _compute(job, chance, step, rank, now[rank], f"adam_{index}", "optimizer")
            found[rank].append(step)
    return found


def _compute(
    job: GpuJob, chance: random.Random, step: Step, rank: int, begin: float, name: str, phase: str
) -> float:
    length = job.kernel * job.slow.get(rank, 1.0) * max(0.2, chance.gauss(1.0, job.noise))
    step.kernels.append(Kernel(f"void {name}<float, 4>(float*, int)", phase, begin, begin + length))
    return begin + length + 3.0


def _forward(job: GpuJob, chance: random.Random, steps: Sequence[Step], now: list[float]) -> None:
    for index in range(job.kernels):
        for rank, step in enumerate(steps):
            now[rank] = _compute(job, chance, step, rank, now[rank], f"gemm_{index}", "forward")
        if job.blocking and index % 4 == 3:
            for first in range(0, job.ranks, 2):
                pair = range(first, first + 2)
                end = max(now[rank] for rank in pair) + job.transfer / 4
                for rank in pair:
                    group = (f"{1 + first // 2}", list(pair))
                    _collective(steps[rank], now[rank], end, group, 65_536, "forward")
                    now[rank] = end + 2.0


def _backward(job: GpuJob, chance: random.Random, steps: Sequence[Step], now: list[float]) -> None:
    ready: list[list[float]] = []
    for index in range(2 * job.kernels):
        for rank, step in enumerate(steps):
            now[rank] = _compute(job, chance, step, rank, now[rank], f"gemm_bwd_{index}", "backward")
        if (index + 1) % max(1, 2 * job.kernels // job.buckets) == 0 and len(ready) < job.buckets:
            ready.append(list(now))
    reached = 0.0
    for bucket, at in enumerate(ready):
        begins = [max(each, reached) for each in at]
        reached = max(begins) + job.transfer
        for step, begin in zip(steps, begins, strict=True):
            group = ("0", list(range(job.ranks)))
            _collective(step, begin, reached, group, 6_553_600 + bucket, "backward")
    for rank in range(job.ranks):
        now[rank] = max(now[rank], reached) + 2.0


def _collective(
    step: Step, begin: float, end: float, group: tuple[str, Sequence[int]], elements: int, phase: str
) -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    step.kernels.append(Kernel(name, phase, begin, end, _COMMUNICATION_STREAM, group, elements))


Groups = Sequence[tuple[str, str, Sequence[int]]]
"""Name, description and ranks of the process groups of a rank."""


def trace_text(
    rank: int, ranks: int, groups: Groups, steps: Sequence[Step], form: TraceForm
) -> Iterator[str]:
    """The file of one rank, in pieces."""
    ahead_ns = round(form.clocks[rank] * 1e9) if form.clocks else 0
    head: dict[str, Any] = {"schemaVersion": 1, "record_shapes": 1, "with_stack": 1}
    if form.distributed_info:
        head["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": ranks,
            "pg_count": len(groups),
            "pg_config": [_group(*each) for each in groups],
            "nccl_version": "2.29.7",
        }
    text = json.dumps(head, indent=2)
    yield f"{text[:-2]},\n"
    yield f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS + ahead_ns},\n  "traceEvents": [\n'
    yield from _events(rank, steps, form)
    yield '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
    yield '    "pid": "", "tid": "", "ts": 99999999.000\n  }\n  ],\n'
    yield '  "traceName": "/tmp/trace.json"\n}'


def _group(name: str, description: str, ranks: Sequence[int]) -> dict[str, Any]:
    return {
        "pg_name": name,
        "pg_desc": description,
        "backend_config": "cuda:nccl",
        "pg_size": len(ranks),
        "ranks": list(ranks),
    }


def _groups_of(job: GpuJob, rank: int) -> Groups:
    everyone = ("0", "default_pg", range(job.ranks))
    first = rank // 2 * 2
    pair = (f"{1 + first // 2}", "mesh_tp", range(first, first + 2))
    return [everyone, pair] if job.blocking else [everyone]


def _events(rank: int, steps: Sequence[Step], form: TraceForm) -> Iterator[str]:
    pid = 17_000 + rank
    correlation = 100
    device: list[str] = []
    for step in steps:
        end = max(each.end for each in step.kernels)
        if form.annotate_steps:
            yield _span(
                "user_annotation", f"ProfilerStep#{step.number}", pid, _MAIN_THREAD, *_host(step, end)
            )
        if form.mark_phases:
            yield from _annotations(step, pid, form)
        for each in step.kernels:
            correlation += 1
            thread = _AUTOGRAD_THREAD if each.phase == "backward" else _MAIN_THREAD
            launched = each.begin - _LAUNCH_AHEAD
            if form.mark_phases:
                yield from _launch(each, correlation, pid, thread, launched, form)
            for depth in range(form.padding):
                yield _python_function(depth, pid, thread, launched)
            device.append(_kernel(each, rank, correlation, form))
    yield from device


def _host(step: Step, end: float) -> tuple[float, float]:
    begin = step.begin - _LAUNCH_AHEAD - 10.0
    return begin, end - _LAUNCH_AHEAD - begin - 5.0


def _annotations(step: Step, pid: int, form: TraceForm) -> Iterator[str]:
    at = step.begin - _LAUNCH_AHEAD + step.host_gap
    if step.loading:
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        yield _span("user_annotation", name, pid, _MAIN_THREAD, at + _LAUNCH_AHEAD, step.loading)
    last = [each for each in step.kernels if each.phase == "optimizer"]
    begin = (step.kernels if form.closure else last)[0].begin - _LAUNCH_AHEAD - 1.0
    end = last[-1].begin - _LAUNCH_AHEAD + 8.0
    yield _span("user_annotation", "Optimizer.step#AdamW.step", pid, _MAIN_THREAD, begin, end - begin)


def _launch(
    each: Kernel, correlation: int, pid: int, thread: int, at: float, form: TraceForm
) -> Iterator[str]:
    name = "aten::mm"
    args = f'"External id": {correlation},"Record function id": 0, "Ev Idx": {correlation}'
    if each.group is not None:
        name = "record_param_comms"
        args += _described(each, form)
    elif each.phase == "backward":
        name = "autograd::engine::evaluate_function: MmBackward0"
    yield _span("cpu_op", name, pid, thread, at - 1.0, 6.0, args)
    yield _span(
        "cuda_runtime",
        "cudaLaunchKernel",
        pid,
        thread,
        at,
        4.0,
        f'"External id": {correlation}, "cbid": 211, "correlation": {correlation}',
    )
    yield (
        f'  {{\n    "ph": "s", "id": {correlation}, "pid": {pid}, "tid": {thread}, "ts": {at:.3f},\n'
        '    "cat": "ac2g", "name": "ac2g"\n  },\n'
    )


def _described(each: Kernel, form: TraceForm) -> str:
    if each.group is None or not form.describe:
        return ""
    name, ranks = each.group
    return (
        f', "Collective name": "{each.collective}", "In msg nelems": {each.elements},'
        f' "Out msg nelems": {each.elements}, "Group size": {len(ranks)}, "dtype": "Float",'
        f' "Process Group Name": "{name}",'
        f' "Process Group Description": "", "Process Group Ranks": "{list(ranks)}"'
    )


def _kernel(each: Kernel, rank: int, correlation: int, form: TraceForm) -> str:
    device = rank % 8
    args = (
        f'"External id": {correlation},"queued": 0, "device": {device}, "context": 1,'
        f' "stream": {each.stream}, "correlation": {correlation}, "registers per thread": 96,'
        ' "shared memory": 49152,'
        ' "blocks per SM": 1.939394, "grid": [256, 1, 1], "block": [256, 1, 1],'
        f' "est. achieved occupancy %": 31{_described(each, form)}'
    )
    return _span("kernel", each.name, device, each.stream, each.begin, each.end - each.begin, args)


def _python_function(depth: int, pid: int, thread: int, at: float) -> str:
    name = f"torch/nn/modules/module.py({1700 + depth}): _call_impl"
    args = f'"Python parent id": {depth}, "Python id": {depth + 1}, "Ev Idx": {depth}'
    return _span("python_function", name, pid, thread, at - 40.0 + depth, 60.0 - 2 * depth, args)


def _span(
    category: str, name: str, pid: int, tid: int, begin: float, length: float, args: str = '"Ev Idx": 0'
) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {begin:.3f}, "dur": {length:.3f},\n    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def write_traces(
    directory: Path, job: GpuJob, form: TraceForm | None = None, *, packed: bool = False
) -> list[Path]:
    """A file per rank, as `tensorboard_trace_handler` names them."""
    lines = compute_job(job)
    return write_files(directory, lines, [_groups_of(job, rank) for rank in range(job.ranks)], form, packed)


def write_files(
    directory: Path,
    lines: Sequence[Sequence[Step]],
    groups: Sequence[Groups],
    form: TraceForm | None = None,
    packed: bool = False,
) -> list[Path]:
    """The same of any job, by the steps and groups of each rank."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, steps in enumerate(lines):
        path = directory / f"node-{rank // 8}_{17_000 + rank}.{1_795_367_070_945 + rank}.pt.trace.json"
        if packed:
            path = path.with_name(f"{path.name}.gz")
        pieces = trace_text(rank, len(lines), groups[rank], steps, form or TraceForm())
        file: IO[bytes]
        with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as file:  # type: ignore[assignment]
            file.writelines(piece.encode() for piece in pieces)
        paths.append(path)
    return paths
