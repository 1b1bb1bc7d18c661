"""Pipelines: the sends and receives of each stage, after torch/distributed/pipelining/schedules.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from support.device.machine import Operation
from support.device.model import (
    BACKWARD_SECONDS,
    FORWARD_SECONDS,
    LAYERS,
    OPTIMIZER_SECONDS,
    TRANSFER_SECONDS,
    Grid,
    Step,
    layers,
)
from support.device.rank import Rank

MICROBATCHES = 8
Messages = list[tuple[int, object]]
"""Peer and name of each."""
_AHEAD = {"F": 1, "B": -1}
"""Pass -> from its stage to the one that takes its output."""


class Pipe:
    """The sends and receives of one rank of a pipeline, and its passes."""

    def __init__(self, rank: Rank, grid: Grid, stages_per_rank: int = 1) -> None:
        self._rank = rank
        self._grid = grid
        self._stages = grid.pp * stages_per_rank
        self._layers = max(1, LAYERS // stages_per_rank)
        self._group = grid.group("mesh_pp", rank.number, "pp")
        self._step = 0

    def step(self, microbatches: Callable[[], None]) -> Step:
        """All microbatches, and what the replicas of the stage do together."""
        rank, replicas = self._rank, self._grid.group("mesh_dp", self._rank.number, "dp")

        def step() -> Iterator[Operation]:
            self._step += 1
            microbatches()
            rank.collective("all_reduce", replicas, TRANSFER_SECONDS)
            with rank.run.phase("optimizer"):
                rank.compute(OPTIMIZER_SECONDS)
            yield from ()

        return step

    def passed(self, kind: str, stage: int, microbatch: int) -> Messages:
        """Where a stage sends the output of a pass, and its name; empty at the end of the pipeline."""
        target = stage + _AHEAD[kind]
        return self._message(target, kind, target, microbatch)

    def wanted(self, kind: str, stage: int, microbatch: int) -> Messages:
        """From where a stage receives the input of a pass."""
        return self._message(stage - _AHEAD[kind], kind, stage, microbatch)

    def _message(self, other: int, kind: str, target: int, microbatch: int) -> Messages:
        if not 0 <= other < self._stages:
            return []
        return [(self._group.ranks[other % self._grid.pp], (self._step, kind, target, microbatch))]

    def run(self, kind: str) -> None:
        """A pass of one microbatch through the layers of one stage."""
        name, seconds = ("forward", FORWARD_SECONDS) if kind == "F" else ("backward", BACKWARD_SECONDS)
        with self._rank.run.phase(name):
            layers(self._rank.compute, seconds / 4, self._layers)

    def batch(self, sends: Messages, receives: Messages) -> list[Any]:
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
    stage = grid.place(rank.number)[0]
    warmup = min(MICROBATCHES, grid.pp - stage)

    def microbatches() -> None:
        sending: list[Any] = []
        for forward in range(warmup):
            _wait(pipe.batch([], pipe.wanted("F", stage, forward)))
            pipe.run("F")
            _wait(sending)
            if forward < warmup - 1:
                sending = pipe.batch(pipe.passed("F", stage, forward), [])
        for backward in range(MICROBATCHES - warmup + 1):
            last = backward + warmup - 1
            _wait(pipe.batch(pipe.passed("F", stage, last), pipe.wanted("B", stage, backward)))
            pipe.run("B")
            if last < MICROBATCHES - 1:
                _wait(pipe.batch(pipe.passed("B", stage, backward), pipe.wanted("F", stage, last + 1)))
                pipe.run("F")
        sending = pipe.batch(pipe.passed("B", stage, MICROBATCHES - warmup), [])
        for backward in range(MICROBATCHES - warmup + 1, MICROBATCHES):
            _wait(pipe.batch([], pipe.wanted("B", stage, backward)))
            pipe.run("B")
            _wait(sending)
            sending = pipe.batch(pipe.passed("B", stage, backward), [])
        _wait(sending)

    return pipe.step(microbatches)


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
    mine = grid.place(rank.number)[0]
    neighbours = ((mine - 1) % grid.pp, "F"), ((mine + 1) % grid.pp, "B")

    def microbatches() -> None:
        for at, action in enumerate(order[mine]):
            sends, receives = [], []
            if action is not None:
                pipe.run(action.kind)
                sends = pipe.passed(*action)
            for neighbour, kind in neighbours:
                theirs = order[neighbour][at]
                if theirs is not None and theirs.kind == kind:
                    target = theirs.stage + _AHEAD[kind]
                    if 0 <= target < 2 * grid.pp:
                        receives += pipe.wanted(kind, target, theirs.microbatch)
            _wait(pipe.batch(sends, receives))

    return pipe.step(microbatches)


def interleaved_order(ranks: int) -> list[list[Action | None]]:
    """By rank: its pass in each time step, None where it has to wait. As many warm-up passes as
    `ScheduleInterleaved1F1B` makes."""
    total = 2 * MICROBATCHES
    left = []
    for rank in range(ranks):
        forward, backward = (
            [
                Action(kind, rank + ranks * ((n // ranks + later) % 2), n // (2 * ranks) * ranks + n % ranks)
                for n in range(total)
            ]
            for kind, later in (("F", 0), ("B", 1))
        )
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
