"""Sharded parameters and gradients: FSDP on streams of its own, ZeRO-3, and compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from support.device.machine import Operation
from support.device.model import (
    BACKWARD_SECONDS,
    COPY_SECONDS,
    FORWARD_SECONDS,
    LAYERS,
    TRANSFER_SECONDS,
    Grid,
    Layer,
    Step,
    layers,
    three_phases,
)
from support.device.rank import Members, Rank


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
