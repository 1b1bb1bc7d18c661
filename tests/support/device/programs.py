"""What the host of one rank calls in a training step: data, tensor and expert parallel, and the table of all.

Each program names the file and the function of torch 2.13 whose order of calls on streams it follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from support.device.machine import Operation
from support.device.model import (
    BACKWARD_SECONDS,
    COPY_SECONDS,
    FORWARD_SECONDS,
    LAYERS,
    OPTIMIZER_SECONDS,
    TRANSFER_SECONDS,
    Grid,
    Layer,
    Step,
    layers,
    three_phases,
)
from support.device.pipelines import interleaved, one_f_one_b
from support.device.rank import Members, Rank
from support.device.sharded import compiled, fsdp1, fsdp2, hsdp, side_streams, zero3

# -- data parallel --------------------------------------------------------------------------------


class Reducer:
    """torch/csrc/distributed/c10d/reducer.cpp: `all_reduce_bucket` as gradients come, `finalize_backward`."""

    def __init__(self, rank: Rank, members: Members) -> None:
        self._rank, self._members = rank, members
        self._works: list[tuple[int, Any]] = []

    def backward(self, layer: Layer, seconds: float = BACKWARD_SECONDS) -> None:
        """A pass through all layers, with a bucket for each two."""
        for number in range(LAYERS):
            layer(seconds)
            if number % 2:
                self.bucket_ready(last=number == LAYERS - 1)

    def bucket_ready(self, *, last: bool = False) -> None:
        """Enqueue its all-reduce; the last one queues the callback (`mark_variable_ready`)."""
        rank = self._rank
        work = rank.collective("all_reduce", self._members, 2 * TRANSFER_SECONDS, asynchronous=True)
        self._works.append((rank.machine.device, work))
        if last:
            rank.machine.autograd.queue_callback(self._finalize)

    def _finalize(self) -> None:
        for device, work in self._works:
            with self._rank.machine.on_device(device):
                work.block()
        self._works.clear()


def _around(rank: Rank, members: Members, layer: Layer) -> Step:
    """DDP around layers that may communicate themselves."""
    reducer = Reducer(rank, members)
    return three_phases(rank, lambda: layers(layer, FORWARD_SECONDS), lambda: reducer.backward(layer))


def ddp(rank: Rank, grid: Grid) -> Step:
    """`DistributedDataParallel` with buffers (torch/nn/parallel/distributed.py, `_pre_forward`)."""
    reducer = Reducer(rank, grid.world)

    def forward() -> None:
        rank.broadcast_buffers(grid.world, COPY_SECONDS)
        layers(rank.compute, FORWARD_SECONDS)

    return three_phases(rank, forward, lambda: reducer.backward(rank.compute))


def lightning(rank: Rank, grid: Grid) -> Step:
    """DDP in Lightning's automatic optimization: the optimizer's closure runs forward and backward."""
    run = rank.run
    reducer = Reducer(rank, grid.world)

    def step() -> Iterator[Operation]:
        with run.phase("optimizer"):
            with run.phase("forward"):
                layers(rank.compute, FORWARD_SECONDS)
            with run.phase("backward"), rank.machine.autograd.backward():
                reducer.backward(rank.compute)
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def accumulation(rank: Rank, grid: Grid) -> Step:
    """DDP with four microbatches, three of them under `no_sync`."""
    run = rank.run
    reducer = Reducer(rank, grid.world)

    def step() -> Iterator[Operation]:
        for backward in (*3 * (layers,), reducer.backward):
            with run.phase("forward"):
                layers(rank.compute, FORWARD_SECONDS / 4)
            with run.phase("backward"), rank.machine.autograd.backward():
                backward(rank.compute, BACKWARD_SECONDS / 4)
        with run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def host_metrics(rank: Rank, grid: Grid) -> Step:
    """DDP that gathers metrics over gloo in each step, for which the host waits."""
    of_ddp = ddp(rank, grid)

    def step() -> Iterator[Operation]:
        yield from of_ddp()
        yield from rank.wait_for_device()
        yield from rank.host_barrier(grid.world, COPY_SECONDS)

    return step


def two_devices(rank: Rank, grid: Grid) -> Step:
    """DDP around a model on two devices: its second half runs on device 1, which waits for copies."""
    run, machine = rank.run, rank.machine
    reducer = Reducer(rank, grid.world)

    def on(device: int, seconds: float) -> None:
        with machine.on_device(device):
            layers(rank.compute, seconds, LAYERS // 2)

    def copy(source: int, target: int) -> None:
        machine.current(target).follow(machine.current(source).enqueue(Operation(COPY_SECONDS)))

    def step() -> Iterator[Operation]:
        with run.phase("forward"):
            on(0, FORWARD_SECONDS)
            copy(0, 1)
            on(1, FORWARD_SECONDS)
        with run.phase("backward"), machine.autograd.backward():
            on(1, BACKWARD_SECONDS)
            with machine.on_device(1):
                reducer.bucket_ready()
            copy(1, 0)
            on(0, BACKWARD_SECONDS)
            reducer.bucket_ready(last=True)
        with run.phase("optimizer"):
            for device in (0, 1):
                with machine.on_device(device):
                    rank.compute(OPTIMIZER_SECONDS)
        yield from rank.wait_for_device(1)

    return step


class _Graph:
    """Work that is captured in the second step, and replayed from then on (torch/cuda/graphs.py)."""

    def __init__(self, rank: Rank, work: Callable[[], object]) -> None:
        self._rank, self._work = rank, work
        self._graph = rank.machine.torch.cuda.CUDAGraph()

    def prepare(self) -> Iterator[Operation]:
        """Capture it, if this is the step for that."""
        if self._rank.run.current_step == 1:
            yield from self._rank.wait_for_device()
            self._graph.capture_begin()
            self._work()
            self._graph.capture_end()

    def run(self) -> None:
        """Enqueue the work of this step."""
        self._work() if self._rank.run.current_step < 2 else self._graph.replay()


def graph_of_compute(rank: Rank, grid: Grid) -> Step:
    """Forward and backward in a CUDA graph, and one all-reduce behind it."""
    run = rank.run
    graph = _Graph(rank, lambda: layers(rank.compute, FORWARD_SECONDS + BACKWARD_SECONDS))

    def step() -> Iterator[Operation]:
        yield from graph.prepare()
        with run.phase("forward"):
            graph.run()
        with run.phase("optimizer"):
            rank.collective("all_reduce", grid.world, LAYERS * TRANSFER_SECONDS)
            rank.compute(OPTIMIZER_SECONDS)

    return step


def graph_of_step(rank: Rank, grid: Grid) -> Step:
    """A whole step with its collectives in a CUDA graph: its waits are not seen."""

    def work() -> None:
        layers(rank.compute, FORWARD_SECONDS + BACKWARD_SECONDS)
        rank.collective("all_reduce", grid.world, LAYERS * TRANSFER_SECONDS)
        rank.compute(OPTIMIZER_SECONDS)

    graph = _Graph(rank, work)

    def step() -> Iterator[Operation]:
        yield from graph.prepare()
        graph.run()

    return step


# -- tensor and expert parallel -------------------------------------------------------------------


def tensor_parallel(rank: Rank, grid: Grid) -> Step:
    """DTensor: torch/distributed/_functional_collectives.py, each waited for at once; DDP around it."""
    group = grid.group("mesh_tp", rank.number, "tp")

    def layer(seconds: float) -> None:
        for _ in range(2):
            rank.compute(seconds / 2)
            rank.functional("all_reduce", group, TRANSFER_SECONDS / 2)()

    return _around(rank, grid.group("mesh_dp", rank.number, "dp"), layer)


def expert_parallel(rank: Rank, grid: Grid) -> Step:
    """Two all-to-alls around the experts of each layer, whose load is uneven by chance."""

    def layer(seconds: float) -> None:
        rank.compute(seconds / 2)
        rank.collective("all_to_all", grid.world, TRANSFER_SECONDS)
        rank.compute(seconds / 2 * rank.random.uniform(0.8, 1.2))
        rank.collective("all_to_all", grid.world, TRANSFER_SECONDS)

    return _around(rank, grid.world, layer)


class Program(NamedTuple):
    """A program, and the ranks that run it."""

    step: Callable[[Rank, Grid], Step]
    grid: Grid
    sees_waits: bool = True
    """Whether own work and waits can be told apart."""
    cost_share: float = 0.02
    """Part of the step by which the price of a cause may differ from the truth."""


PROGRAMS = {
    "ddp": Program(ddp, Grid(dp=4)),
    "lightning": Program(lightning, Grid(dp=4)),
    "accumulation": Program(accumulation, Grid(dp=4)),
    "host_metrics": Program(host_metrics, Grid(dp=4)),
    "two_devices": Program(two_devices, Grid(dp=4), sees_waits=False),
    "graph_of_compute": Program(graph_of_compute, Grid(dp=4)),
    "graph_of_step": Program(graph_of_step, Grid(dp=4), sees_waits=False),
    "fsdp2": Program(fsdp2, Grid(dp=8)),
    "hsdp": Program(hsdp, Grid(dp=2, tp=4)),
    "side_streams": Program(side_streams, Grid(dp=4)),
    "fsdp1": Program(fsdp1, Grid(dp=4)),
    "zero3": Program(zero3, Grid(dp=4)),
    "compiled": Program(compiled, Grid(dp=4)),
    "tensor_parallel": Program(tensor_parallel, Grid(dp=2, tp=4)),
    # Another rank may be the last one at each collective.
    "expert_parallel": Program(expert_parallel, Grid(dp=8), cost_share=0.05),
    "one_f_one_b": Program(one_f_one_b, Grid(pp=4, dp=4)),
    "interleaved": Program(interleaved, Grid(pp=2, dp=4)),
}
