"""What the host of one rank calls in a training step, under each kind of parallelism.

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


# -- sharded --------------------------------------------------------------------------------------


class Fsdp2:
    """torch/distributed/fsdp/_fully_shard: `_fsdp_collectives.py` (`foreach_all_gather`, `foreach_reduce`)
    and `_fsdp_param_group.py` (`unshard`, `wait_for_unshard`, `post_backward`, `finalize_backward`)."""

    def __init__(self, rank: Rank, shards: Members, replicas: Members | None) -> None:
        machine = rank.machine
        self._rank, self._machine, self._shards, self._replicas = rank, machine, shards, replicas
        self._copy_in, self._gather = machine.stream(), machine.stream()
        self._scatter, self._reduce = machine.stream(), machine.stream()
        self._copied_out: Any = None
        self._scattered: Any = None
        self._reduced: dict[Any, Any] = {}

    def begin_forward(self) -> None:
        """`FSDPState._root_pre_forward`."""
        for stream in (self._copy_in, self._gather):
            stream.wait_stream(self._machine.current())

    def end_forward(self) -> None:
        """`FSDPState._post_forward` of the last state."""
        self._gather_after_copy()

    def unshard(self) -> Any:
        """Returns the event of its all-gather."""
        rank, machine = self._rank, self._machine
        with machine.on(self._copy_in):
            rank.compute(COPY_SECONDS)
        self._gather.wait_stream(self._copy_in)
        with machine.on(self._gather):
            rank.collective("all_gather", self._shards, TRANSFER_SECONDS)
            return self._gather.record_event()

    def wait_for_unshard(self, gathered: Any, *, forward: bool) -> None:
        """The compute stream waits for an all-gather, and copies its output."""
        if forward:
            self._gather_after_copy()
        self._machine.current().wait_event(gathered)
        self._rank.compute(COPY_SECONDS)
        self._copied_out = self._machine.current().record_event()
        if not forward:
            self._gather_after_copy()

    def _gather_after_copy(self) -> None:
        if self._copied_out is not None:
            self._copy_in.wait_event(self._copied_out)
            self._gather.wait_event(self._copied_out)
            self._copied_out = None

    def post_backward(self) -> None:
        """Reduce the gradients of a layer."""
        rank, machine = self._rank, self._machine
        if self._scattered is not None:
            machine.current().wait_event(self._scattered)
        rank.compute(COPY_SECONDS)
        self._scatter.wait_stream(machine.current())
        last = self._scatter
        with machine.on(self._scatter):
            rank.collective("reduce_scatter", self._shards, TRANSFER_SECONDS)
            self._scattered = self._scatter.record_event()
            if self._replicas is not None:
                last = self._reduce
                self._reduce.wait_stream(self._scatter)
                with machine.on(self._reduce):
                    rank.collective("all_reduce", self._replicas, TRANSFER_SECONDS)
                    self._reduce.record_event()
        with machine.on(last):
            rank.compute(COPY_SECONDS)
            self._reduced[last] = last.record_event()

    def finalize_backward(self) -> None:
        """The final callback of the root (`_root_post_backward_final_callback`)."""
        for event in (*self._reduced.values(), self._scattered):
            self._machine.current().wait_event(event)
        self._reduced.clear()
        self._scattered = None


def fsdp2(rank: Rank, grid: Grid) -> Step:
    """`fully_shard` on each layer."""
    return _fsdp2(rank, Fsdp2(rank, grid.world, None), rank.compute)


def hsdp(rank: Rank, grid: Grid) -> Step:
    """The same, sharded in the inner dimension of a mesh and replicated in the outer one."""
    shards, replicas = grid.group("mesh_shard", rank.number, "tp"), grid.group("mesh_dp", rank.number, "dp")
    return _fsdp2(rank, Fsdp2(rank, shards, replicas), rank.compute)


def side_streams(rank: Rank, grid: Grid) -> Step:
    """FSDP2 whose layers compute one half on a side stream, on which no collective runs."""
    machine = rank.machine
    side = machine.stream()

    def layer(seconds: float) -> None:
        side.wait_stream(machine.current())
        with machine.on(side):
            rank.compute(seconds / 2)
        machine.current().wait_stream(side)
        rank.compute(seconds / 2)

    return _fsdp2(rank, Fsdp2(rank, grid.world, None), layer)


def _fsdp2(rank: Rank, shards: Fsdp2, layer: Layer) -> Step:
    """layer: its forward pass."""

    def forward() -> None:
        shards.begin_forward()
        for _ in range(LAYERS):
            shards.wait_for_unshard(shards.unshard(), forward=True)
            layer(FORWARD_SECONDS)
        shards.end_forward()

    def backward() -> None:
        rank.machine.autograd.queue_callback(shards.finalize_backward)
        gathered = shards.unshard()
        for number in range(LAYERS):
            shards.wait_for_unshard(gathered, forward=False)
            if number < LAYERS - 1:
                gathered = shards.unshard()
            rank.compute(BACKWARD_SECONDS)
            shards.post_backward()

    return three_phases(rank, forward, backward)


def fsdp1(rank: Rank, grid: Grid) -> Step:
    """torch/distributed/fsdp/_runtime_utils.py: `_unshard` with its rate limiter, `_post_backward_hook`,
    `_post_backward_final_callback`."""
    machine = rank.machine
    unshard, post = machine.stream(), machine.stream()
    freed: list[Any] = []

    def gather() -> Iterator[Operation]:
        if len(freed) >= 2:
            yield freed.pop(0)._point
        with machine.on(unshard):
            rank.collective("all_gather", grid.world, TRANSFER_SECONDS)

    def layer(seconds: float) -> None:
        rank.compute(seconds)
        freed.append(machine.current().record_event())

    def forward() -> Iterator[Operation]:
        unshard.wait_stream(machine.current())
        for _ in range(LAYERS):
            yield from gather()
            machine.current().wait_stream(unshard)
            layer(FORWARD_SECONDS)

    def backward() -> Iterator[Operation]:
        machine.autograd.queue_callback(lambda: machine.current().wait_stream(post))
        yield from gather()
        for number in range(LAYERS):
            machine.current().wait_stream(unshard)
            if number < LAYERS - 1:
                yield from gather()
            layer(BACKWARD_SECONDS)
            post.wait_stream(machine.current())
            with machine.on(post):
                rank.collective("reduce_scatter", grid.world, TRANSFER_SECONDS)

    return three_phases(rank, forward, backward)


def zero3(rank: Rank, grid: Grid) -> Step:
    """Parameters and gradients as in ZeRO-3, by synchronous calls on the compute stream."""

    def forward(seconds: float) -> None:
        rank.collective("all_gather", grid.world, TRANSFER_SECONDS)
        rank.compute(seconds)

    def backward(seconds: float) -> None:
        forward(seconds)
        rank.collective("reduce_scatter", grid.world, TRANSFER_SECONDS)

    return three_phases(
        rank, lambda: layers(forward, FORWARD_SECONDS), lambda: layers(backward, BACKWARD_SECONDS)
    )


def compiled(rank: Rank, grid: Grid) -> Step:
    """Sharded by functional collectives in compiled code: each all-gather starts one layer early
    (torch/_inductor/comms.py, `reorder_compute_for_overlap`)."""

    def start(name: str) -> Callable[[], None]:
        return rank.functional(name, grid.world, TRANSFER_SECONDS)

    def one_pass(seconds: float, *, reduce: bool) -> None:
        wait = start("all_gather")
        reduced = []
        for layer in range(LAYERS):
            wait()
            if layer < LAYERS - 1:
                wait = start("all_gather")
            rank.compute(seconds)
            if reduce:
                reduced.append(start("reduce_scatter"))
        for each in reduced:
            each()

    return three_phases(
        rank,
        lambda: one_pass(FORWARD_SECONDS, reduce=False),
        lambda: one_pass(BACKWARD_SECONDS, reduce=True),
    )


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
