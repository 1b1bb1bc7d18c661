"""What the host of one rank calls in a training step, under each kind of parallelism.

Each program names the file and the function of torch 2.13 whose order of calls on streams it follows. A
program returns a function that runs one step as a generator, which yields where the host waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.device.machine import Operation
from support.device.rank import Members, Rank

LAYERS = 6
FORWARD_SECONDS, BACKWARD_SECONDS = 1.5e-3, 3e-3
"""Of one layer."""
OPTIMIZER_SECONDS = 1e-3
TRANSFER_SECONDS = 0.3e-3
"""Of the parameters, gradients or activations of one layer."""
COPY_SECONDS = 30e-6
MICROBATCHES = 8

Step = Callable[[], Iterator[Operation]]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The ranks of a job: pipeline stages hold replicas, which hold tensor-parallel ranks."""

    pp: int = 1
    dp: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.tp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and tensor-parallel rank."""
        return rank // (self.dp * self.tp), rank // self.tp % self.dp, rank % self.tp

    def coordinates(self, rank: int) -> Mapping[str, tuple[int, int]]:
        """As of an identity."""
        sizes = {"pp": self.pp, "dp": self.dp, "tp": self.tp}
        return {name: (at, sizes[name]) for name, at in zip(sizes, self.place(rank), strict=True)}

    def group(self, name: str, rank: int, *dimensions: str) -> Members:
        """The ranks that differ from this one in these dimensions only."""
        mine = self.coordinates(rank)
        ranks = [
            each
            for each in range(self.size)
            if all(at == mine[of] or of in dimensions for of, at in self.coordinates(each).items())
        ]
        return Members(name, tuple(ranks))


def _world(grid: Grid) -> Members:
    return Members("default_pg", tuple(range(grid.size)))


# -- data parallel --------------------------------------------------------------------------------


class Reducer:
    """torch/csrc/distributed/c10d/reducer.cpp: `all_reduce_bucket` as gradients come, `finalize_backward`."""

    def __init__(self, rank: Rank, members: Members) -> None:
        self._rank, self._members = rank, members
        self._works: list[tuple[int, Any]] = []

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


def ddp(rank: Rank, grid: Grid) -> Step:
    """`DistributedDataParallel` with buffers (torch/nn/parallel/distributed.py, `_pre_forward`)."""
    world, run = _world(grid), rank.run
    reducer = Reducer(rank, world)

    def step() -> Iterator[Operation]:
        with run.phase("forward"):
            rank.broadcast_buffers(world, COPY_SECONDS)
            _layers(rank, FORWARD_SECONDS)
        with run.phase("backward"):
            _reduced_backward(rank, reducer)
        with run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def lightning(rank: Rank, grid: Grid) -> Step:
    """DDP in Lightning's automatic optimization: the optimizer's closure runs forward and backward."""
    run = rank.run
    reducer = Reducer(rank, _world(grid))

    def step() -> Iterator[Operation]:
        with run.phase("optimizer"):
            with run.phase("forward"):
                _layers(rank, FORWARD_SECONDS)
            with run.phase("backward"):
                _reduced_backward(rank, reducer)
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def accumulation(rank: Rank, grid: Grid) -> Step:
    """DDP with four microbatches, three of them under `no_sync`."""
    run = rank.run
    reducer = Reducer(rank, _world(grid))

    def step() -> Iterator[Operation]:
        for microbatch in range(4):
            with run.phase("forward"):
                _layers(rank, FORWARD_SECONDS / 4)
            with run.phase("backward"):
                if microbatch < 3:
                    with rank.machine.autograd.backward():
                        _layers(rank, BACKWARD_SECONDS / 4)
                else:
                    _reduced_backward(rank, reducer, BACKWARD_SECONDS / 4)
        with run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def host_metrics(rank: Rank, grid: Grid) -> Step:
    """DDP that gathers metrics over gloo in each step, for which the host waits."""
    world = _world(grid)
    of_ddp = ddp(rank, grid)

    def step() -> Iterator[Operation]:
        yield from of_ddp()
        yield from rank.wait_for_device()
        yield from rank.host_barrier(world, COPY_SECONDS)

    return step


def two_devices(rank: Rank, grid: Grid) -> Step:
    """DDP around a model on two devices: its second half runs on device 1, which waits for copies."""
    run, machine = rank.run, rank.machine
    reducer = Reducer(rank, _world(grid))

    def on(device: int, seconds: float) -> None:
        with machine.on_device(device):
            _layers(rank, seconds, LAYERS // 2)

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


def graph_of_compute(rank: Rank, grid: Grid) -> Step:
    """Forward and backward in a CUDA graph, and one all-reduce behind it (torch/cuda/graphs.py)."""
    run, machine = rank.run, rank.machine
    graph = machine.torch.cuda.CUDAGraph()
    world = _world(grid)

    def work() -> None:
        _layers(rank, FORWARD_SECONDS + BACKWARD_SECONDS)

    def step() -> Iterator[Operation]:
        if run.current_step == 1:
            yield from rank.wait_for_device()
            graph.capture_begin()
            work()
            graph.capture_end()
        with run.phase("forward"):
            work() if run.current_step < 2 else graph.replay()
        with run.phase("optimizer"):
            rank.collective("all_reduce", world, LAYERS * TRANSFER_SECONDS)
            rank.compute(OPTIMIZER_SECONDS)

    return step


def graph_of_step(rank: Rank, grid: Grid) -> Step:
    """A whole step with its collectives in a CUDA graph: its waits are not seen."""
    run, machine = rank.run, rank.machine
    graph = machine.torch.cuda.CUDAGraph()
    world = _world(grid)

    def work() -> None:
        _layers(rank, FORWARD_SECONDS + BACKWARD_SECONDS)
        rank.collective("all_reduce", world, LAYERS * TRANSFER_SECONDS)
        rank.compute(OPTIMIZER_SECONDS)

    def step() -> Iterator[Operation]:
        if run.current_step == 1:
            yield from rank.wait_for_device()
            graph.capture_begin()
            work()
            graph.capture_end()
        work() if run.current_step < 2 else graph.replay()

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
        self._gather_after(self._copied_out)
        self._copied_out = None

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
        if forward and self._copied_out is not None:
            self._gather_after(self._copied_out)
            self._copied_out = None
        self._machine.current().wait_event(gathered)
        self._rank.compute(COPY_SECONDS)
        copied = self._machine.torch.cuda.Event()
        copied.record()
        if forward:
            self._copied_out = copied
        else:
            self._gather_after(copied)

    def _gather_after(self, event: Any) -> None:
        if event is not None:
            self._copy_in.wait_event(event)
            self._gather.wait_event(event)

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
    return _fsdp2(rank, Fsdp2(rank, _world(grid), None), lambda: rank.compute(FORWARD_SECONDS))


def hsdp(rank: Rank, grid: Grid) -> Step:
    """The same, sharded in the inner dimension of a mesh and replicated in the outer one."""
    shards, replicas = grid.group("mesh_shard", rank.number, "tp"), grid.group("mesh_dp", rank.number, "dp")
    return _fsdp2(rank, Fsdp2(rank, shards, replicas), lambda: rank.compute(FORWARD_SECONDS))


def side_streams(rank: Rank, grid: Grid) -> Step:
    """FSDP2 whose layers compute one half on a side stream, on which no collective runs."""
    machine = rank.machine
    side = machine.stream()

    def layer() -> None:
        side.wait_stream(machine.current())
        with machine.on(side):
            rank.compute(FORWARD_SECONDS / 2)
        machine.current().wait_stream(side)
        rank.compute(FORWARD_SECONDS / 2)

    return _fsdp2(rank, Fsdp2(rank, _world(grid), None), layer)


def _fsdp2(rank: Rank, shards: Fsdp2, layer: Callable[[], None]) -> Step:
    run, autograd = rank.run, rank.machine.autograd

    def step() -> Iterator[Operation]:
        with run.phase("forward"):
            shards.begin_forward()
            for _ in range(LAYERS):
                shards.wait_for_unshard(shards.unshard(), forward=True)
                layer()
            shards.end_forward()
        with run.phase("backward"), autograd.backward():
            autograd.queue_callback(shards.finalize_backward)
            gathered = shards.unshard()
            for number in range(LAYERS):
                shards.wait_for_unshard(gathered, forward=False)
                if number < LAYERS - 1:
                    gathered = shards.unshard()
                rank.compute(BACKWARD_SECONDS)
                shards.post_backward()
        with run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def fsdp1(rank: Rank, grid: Grid) -> Step:
    """torch/distributed/fsdp/_runtime_utils.py: `_unshard` with its rate limiter, `_post_backward_hook`,
    `_post_backward_final_callback`."""
    run, machine, world = rank.run, rank.machine, _world(grid)
    unshard, post = machine.stream(), machine.stream()
    freed: list[Any] = []

    def gather() -> Iterator[Operation]:
        if len(freed) >= 2:
            yield freed.pop(0)._point
        with machine.on(unshard):
            rank.collective("all_gather", world, TRANSFER_SECONDS)

    def free() -> None:
        event = machine.torch.cuda.Event()
        event.record()
        freed.append(event)

    def finalize() -> None:
        machine.current().wait_stream(post)

    def step() -> Iterator[Operation]:
        with run.phase("forward"):
            unshard.wait_stream(machine.current())
            for _ in range(LAYERS):
                yield from gather()
                machine.current().wait_stream(unshard)
                rank.compute(FORWARD_SECONDS)
                free()
        with run.phase("backward"), machine.autograd.backward():
            machine.autograd.queue_callback(finalize)
            yield from gather()
            for number in range(LAYERS):
                machine.current().wait_stream(unshard)
                if number < LAYERS - 1:
                    yield from gather()
                rank.compute(BACKWARD_SECONDS)
                free()
                post.wait_stream(machine.current())
                with machine.on(post):
                    rank.collective("reduce_scatter", world, TRANSFER_SECONDS)
        with run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)

    return step


def zero3(rank: Rank, grid: Grid) -> Step:
    """Parameters and gradients as in ZeRO-3, by synchronous calls on the compute stream."""
    run, world = rank.run, _world(grid)

    def step() -> Iterator[Operation]:
        with run.phase("forward"):
            for _ in range(LAYERS):
                rank.collective("all_gather", world, TRANSFER_SECONDS)
                rank.compute(FORWARD_SECONDS)
        with run.phase("backward"), rank.machine.autograd.backward():
            for _ in range(LAYERS):
                rank.collective("all_gather", world, TRANSFER_SECONDS)
                rank.compute(BACKWARD_SECONDS)
                rank.collective("reduce_scatter", world, TRANSFER_SECONDS)
        with run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def compiled(rank: Rank, grid: Grid) -> Step:
    """Sharded by functional collectives in compiled code: each all-gather starts one layer early
    (torch/_inductor/comms.py, `reorder_compute_for_overlap`)."""
    run, world = rank.run, _world(grid)

    def layers(seconds: float, *, reduce: bool) -> None:
        wait = rank.functional("all_gather", world, TRANSFER_SECONDS)
        reduced = []
        for layer in range(LAYERS):
            wait()
            if layer < LAYERS - 1:
                wait = rank.functional("all_gather", world, TRANSFER_SECONDS)
            rank.compute(seconds)
            if reduce:
                reduced.append(rank.functional("reduce_scatter", world, TRANSFER_SECONDS))
        for each in reduced:
            each()

    def step() -> Iterator[Operation]:
        with run.phase("forward"):
            layers(FORWARD_SECONDS, reduce=False)
        with run.phase("backward"), rank.machine.autograd.backward():
            layers(BACKWARD_SECONDS, reduce=True)
        with run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


# -- tensor and expert parallel -------------------------------------------------------------------


def _around(rank: Rank, reducer: Reducer, layer: Callable[[float], None]) -> Step:
    """DDP, with two buckets, around layers that communicate themselves."""

    def step() -> Iterator[Operation]:
        with rank.run.phase("forward"):
            for _ in range(LAYERS):
                layer(FORWARD_SECONDS)
        with rank.run.phase("backward"), rank.machine.autograd.backward():
            for number in range(LAYERS):
                layer(BACKWARD_SECONDS)
                if number % 2:
                    reducer.bucket_ready(last=number == LAYERS - 1)
        with rank.run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


def tensor_parallel(rank: Rank, grid: Grid) -> Step:
    """DTensor: torch/distributed/_functional_collectives.py, each waited for at once; DDP around it."""
    group = grid.group("mesh_tp", rank.number, "tp")
    reducer = Reducer(rank, grid.group("mesh_dp", rank.number, "dp"))

    def layer(seconds: float) -> None:
        for _ in range(2):
            rank.compute(seconds / 2)
            rank.functional("all_reduce", group, TRANSFER_SECONDS / 2)()

    return _around(rank, reducer, layer)


def expert_parallel(rank: Rank, grid: Grid) -> Step:
    """Two all-to-alls around the experts of each layer, whose load is uneven by chance."""
    world = _world(grid)
    reducer = Reducer(rank, world)

    def layer(seconds: float) -> None:
        rank.compute(seconds / 2)
        rank.collective("all_to_all", world, TRANSFER_SECONDS)
        rank.compute(seconds / 2 * rank.random.uniform(0.8, 1.2))
        rank.collective("all_to_all", world, TRANSFER_SECONDS)

    return _around(rank, reducer, layer)


# -- pipelines ------------------------------------------------------------------------------------


class Pipe:
    """The sends and receives of one rank of a pipeline, and its passes."""

    def __init__(self, rank: Rank, grid: Grid, stages_per_rank: int = 1) -> None:
        self._rank = rank
        self._grid = grid
        self._stages = grid.pp * stages_per_rank
        self._layers = max(1, LAYERS // stages_per_rank)
        self._group = grid.group("mesh_pp", rank.number, "pp")
        self._step = 0

    def begin(self) -> None:
        """A step begins."""
        self._step += 1

    def peer(self, stage: int) -> int:
        """The rank of this replica that holds a stage."""
        return self._group.ranks[stage % self._grid.pp]

    def passed(self, kind: str, stage: int, microbatch: int) -> list[tuple[int, object]]:
        """Where a stage sends the output of a pass, and its name; empty at the end of the pipeline."""
        target = stage + 1 if kind == "F" else stage - 1
        if not 0 <= target < self._stages:
            return []
        return [(self.peer(target), (self._step, kind, target, microbatch))]

    def wanted(self, kind: str, stage: int, microbatch: int) -> list[tuple[int, object]]:
        """From where a stage receives the input of a pass."""
        source = stage - 1 if kind == "F" else stage + 1
        if not 0 <= source < self._stages:
            return []
        return [(self.peer(source), (self._step, kind, stage, microbatch))]

    def run(self, kind: str) -> None:
        """A pass of one microbatch through the layers of one stage."""
        name, seconds = ("forward", FORWARD_SECONDS) if kind == "F" else ("backward", BACKWARD_SECONDS)
        with self._rank.run.phase(name):
            _layers(self._rank, seconds / 4, self._layers)

    def batch(
        self, sends: Sequence[tuple[int, object]], receives: Sequence[tuple[int, object]] = ()
    ) -> list[Any]:
        """`_batch_p2p`."""
        if not sends and not receives:
            return []
        return [self._rank.exchange(self._group, sends, receives, TRANSFER_SECONDS / 4)]


def _wait(works: list[Any]) -> None:
    """`_wait_batch_p2p`."""
    for work in works:
        work.wait()
    works.clear()


def one_f_one_b(rank: Rank, grid: Grid) -> Step:
    """torch/distributed/pipelining/schedules.py, `Schedule1F1B._step_microbatches`."""
    pipe = Pipe(rank, grid)
    stage, replicas = grid.place(rank.number)[0], grid.group("mesh_dp", rank.number, "dp")
    warmup = min(MICROBATCHES, grid.pp - stage)

    def microbatches() -> None:
        pipe.begin()
        sending: list[Any] = []
        for forward in range(warmup):
            _wait(pipe.batch([], pipe.wanted("F", stage, forward)))
            pipe.run("F")
            _wait(sending)
            if forward < warmup - 1:
                sending = pipe.batch(pipe.passed("F", stage, forward))
        for backward in range(MICROBATCHES - warmup + 1):
            last = backward + warmup - 1
            _wait(pipe.batch(pipe.passed("F", stage, last), pipe.wanted("B", stage, backward)))
            pipe.run("B")
            if last < MICROBATCHES - 1:
                _wait(pipe.batch(pipe.passed("B", stage, backward), pipe.wanted("F", stage, last + 1)))
                pipe.run("F")
        sending = pipe.batch(pipe.passed("B", stage, MICROBATCHES - warmup))
        for backward in range(MICROBATCHES - warmup + 1, MICROBATCHES):
            _wait(pipe.batch([], pipe.wanted("B", stage, backward)))
            pipe.run("B")
            _wait(sending)
            sending = pipe.batch(pipe.passed("B", stage, backward))
        _wait(sending)

    return _pipeline_step(rank, replicas, microbatches)


class Action(NamedTuple):
    """One pass in a schedule."""

    kind: str
    stage: int
    microbatch: int


def interleaved(rank: Rank, grid: Grid) -> Step:
    """The same file, `PipelineScheduleMulti._step_microbatches` with two stages a rank: in each time step
    a pass, and then what it and the passes of the neighbours send."""
    pipe = Pipe(rank, grid, 2)
    order = interleaved_order(grid.pp)
    mine, replicas = grid.place(rank.number)[0], grid.group("mesh_dp", rank.number, "dp")
    neighbours = ((mine - 1) % grid.pp, "F"), ((mine + 1) % grid.pp, "B")

    def microbatches() -> None:
        pipe.begin()
        for at, action in enumerate(order[mine]):
            sends, receives = [], []
            if action is not None:
                pipe.run(action.kind)
                sends = pipe.passed(*action)
            for neighbour, kind in neighbours:
                theirs = order[neighbour][at]
                if theirs is not None and theirs.kind == kind:
                    target = theirs.stage + (1 if kind == "F" else -1)
                    if 0 <= target < 2 * grid.pp:
                        receives += pipe.wanted(kind, target, theirs.microbatch)
            _wait(pipe.batch(sends, receives))

    return _pipeline_step(rank, replicas, microbatches)


def interleaved_order(ranks: int) -> list[list[Action | None]]:
    """By rank: its pass in each time step, None where it has to wait. As many warm-up passes as
    `ScheduleInterleaved1F1B` makes."""
    total = 2 * MICROBATCHES
    left = []
    for rank in range(ranks):
        forward = [
            Action("F", rank + ranks * (n // ranks % 2), n // (2 * ranks) * ranks + n % ranks)
            for n in range(total)
        ]
        backward = [
            Action("B", rank + ranks * (1 - n // ranks % 2), n // (2 * ranks) * ranks + n % ranks)
            for n in range(total)
        ]
        warmup = min(total, 2 * (ranks - 1 - rank) + ranks)
        queue = forward[:warmup]
        for n in range(total):
            queue += [*forward[warmup + n : warmup + n + 1], backward[n]]
        left.append(queue)
    done: set[Action] = set()
    order: list[list[Action | None]] = [[] for _ in range(ranks)]
    while any(left):
        ready = [queue[0] if queue and _needed(queue[0], 2 * ranks) <= done else None for queue in left]
        assert any(ready), "the schedule waits for itself"
        for queue, actions, action in zip(left, order, ready, strict=True):
            actions.append(action)
            if action is not None:
                queue.pop(0)
                done.add(action)
    return order


def _needed(action: Action, stages: int) -> set[Action]:
    """The passes that must come before."""
    kind, stage, microbatch = action
    if kind == "F":
        return {Action("F", stage - 1, microbatch)} if stage else set()
    return {Action("B", stage + 1, microbatch) if stage < stages - 1 else Action("F", stage, microbatch)}


def _pipeline_step(rank: Rank, replicas: Members, microbatches: Callable[[], None]) -> Step:
    def step() -> Iterator[Operation]:
        microbatches()
        rank.collective("all_reduce", replicas, TRANSFER_SECONDS)
        with rank.run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)
        yield from ()

    return step


# -- common ---------------------------------------------------------------------------------------


def _layers(rank: Rank, seconds: float, count: int = LAYERS) -> None:
    for _ in range(count):
        rank.compute(seconds)


def _reduced_backward(rank: Rank, reducer: Reducer, seconds: float = BACKWARD_SECONDS) -> None:
    with rank.machine.autograd.backward():
        for layer in range(LAYERS):
            rank.compute(seconds)
            if layer % 2:
                reducer.bucket_ready(last=layer == LAYERS - 1)


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
