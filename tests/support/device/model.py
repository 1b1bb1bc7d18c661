"""The model that the programs train, and the ranks that train it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from support.device.machine import Operation
from support.device.rank import Members, Rank

LAYERS = 6
FORWARD_SECONDS, BACKWARD_SECONDS = 1.5e-3, 3e-3
"""Of one layer."""
OPTIMIZER_SECONDS = 1e-3
TRANSFER_SECONDS = 0.3e-3
"""Of the parameters, gradients or activations of one layer."""
COPY_SECONDS = 30e-6

Step = Callable[[], Iterator[Operation]]
"""Runs one step, and yields where the host waits."""
Pass = Callable[[], Iterable[Operation] | None]
"""Enqueues a pass through all layers; may yield like a step."""
Layer = Callable[[float], object]
"""Enqueues a pass through one layer, of so many seconds."""


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

    @property
    def world(self) -> Members:
        """All ranks."""
        return Members("default_pg", tuple(range(self.size)))


def layers(layer: Layer, seconds: float, count: int = LAYERS) -> None:
    """One layer after another."""
    for _ in range(count):
        layer(seconds)


def three_phases(rank: Rank, forward: Pass, backward: Pass) -> Step:
    """A forward pass, a backward pass of autograd, and the optimizer."""

    def step() -> Iterator[Operation]:
        with rank.run.phase("forward"):
            yield from forward() or ()
        with rank.run.phase("backward"), rank.machine.autograd.backward():
            yield from backward() or ()
        with rank.run.phase("optimizer"):
            rank.compute(OPTIMIZER_SECONDS)

    return step
