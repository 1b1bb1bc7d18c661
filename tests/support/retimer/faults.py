"""Faults as physics: each changes the seconds of work or of a pause, and the replay says what they cost.

Every fault has the seconds that it changes drawn from its own random numbers, so that a job without it has
the same numbers in everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from support.retimer.program import Floats
from support.retimer.replay import Replay, Seconds
from support.retimer.waiting import is_message

COMPUTE = frozenset({SlowPhase.COMPUTE})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that makes a job slower. This one is no rank's and no stage's."""

    cause = Cause.NONE
    phases = frozenset[SlowPhase]()
    """Phases that a verdict `slow_rank` may have for it."""

    def ranks(self, replay: Replay) -> frozenset[int]:
        """Ranks that may be named for it."""
        return frozenset()

    def stages(self, replay: Replay) -> frozenset[int]:
        """Stages that may be named for it."""
        return frozenset()

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        """Change the seconds in place."""
        raise NotImplementedError


def in_window(window: str, steps: int) -> NDArray[np.bool_]:
    """(step,): in which steps a fault acts. A fifth lies in the middle of the table."""
    index = np.arange(steps)
    return {
        "whole": index >= 0,
        "second half": index >= steps // 2,
        "a fifth": np.abs(index - 0.45 * steps) < 0.1 * steps,
        "every third": index % 3 == 1,
        "every fifth": index % 5 == 2,
    }[window]


@dataclass(frozen=True, kw_only=True)
class _InWindow(Fault):
    window: str = "whole"

    def active(self, replay: Replay) -> NDArray[np.bool_]:
        """(step,): in which steps it acts."""
        return in_window(self.window, len(replay.program.steps))


@dataclass(frozen=True, kw_only=True)
class _OfRank(_InWindow):
    rank: int

    def ranks(self, replay: Replay) -> frozenset[int]:
        return frozenset({self.rank})


@dataclass(frozen=True, kw_only=True)
class SlowRank(_OfRank):
    """A rank computes `factor` times as long."""

    factor: float
    only: str = ""
    """Part of the names of the operations that take longer; "" for all."""
    cause = Cause.SLOW_RANK
    phases = COMPUTE

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        active = self.active(replay)
        for node in _computation(replay):
            of = replay.program.nodes[node]
            if of.rank == self.rank and self.only in of.names[0]:
                seconds.work[node, active] *= self.factor


@dataclass(frozen=True, kw_only=True)
class Stall(_OfRank):
    """A rank pauses before every `every`-th computation; no row shows it."""

    share: float
    """Of the usual seconds of the computation."""
    every: int = 1
    cause = Cause.SLOW_RANK
    phases = frozenset(SlowPhase)

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        active = self.active(replay)
        mine = [node for node in _passes(replay) if replay.program.nodes[node].rank == self.rank]
        for node in mine[:: self.every]:
            usual = float(np.median(seconds.work[node]))
            seconds.pause[node, active] += self.share * usual * random.uniform(0.8, 1.2, int(active.sum()))


@dataclass(frozen=True, kw_only=True)
class SlowDataLoading(_OfRank):
    """The first stage loads data before each forward pass, and one rank of it waits long."""

    share: float
    """Of the usual seconds of the forward pass; the other ranks wait for 1 %."""
    cause = Cause.SLOW_RANK
    phases = frozenset({SlowPhase.DATA_LOADING})

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        program = replay.program
        active = self.active(replay)
        stage = program.stage_of[self.rank]
        for node in _passes(replay):
            of = program.nodes[node]
            if program.stage_of[of.rank] != stage or "forward" not in of.names[0]:
                continue
            usual = float(np.median(seconds.work[node]))
            waits = 0.01 * usual * np.exp(0.1 * random.standard_normal(len(program.steps)))
            if of.rank == self.rank:
                waits[active] += self.share * usual * random.uniform(0.8, 1.2, int(active.sum()))
            seconds.pause[node] += waits
            seconds.loading[node] = waits


@dataclass(frozen=True, kw_only=True)
class SlowStage(_InWindow):
    """Every rank of a stage computes `factor` times as long."""

    stage: int
    factor: float
    cause = Cause.SLOW_STAGE

    def stages(self, replay: Replay) -> frozenset[int]:
        return frozenset({self.stage})

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        program = replay.program
        active = self.active(replay)
        for node in _passes(replay):
            if program.stage_of[program.nodes[node].rank] == self.stage:
                seconds.work[node, active] *= self.factor


@dataclass(frozen=True, kw_only=True)
class SlowLink(_InWindow):
    """Messages from a stage to the next one take longer in one replica, or all messages of the replica."""

    replica: int
    stage: int | None
    extra_seconds: float
    cause = Cause.NETWORK

    def ranks(self, replay: Replay) -> frozenset[int]:
        program = replay.program
        stages = set(program.stage_of.values()) if self.stage is None else {self.stage, self.stage + 1}
        return frozenset(
            rank
            for rank, stage in program.stage_of.items()
            if stage in stages and program.replica_of[rank] == self.replica
        )

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        active = self.active(replay)
        slow = self.ranks(replay)
        for node, of in enumerate(replay.program.nodes):
            if not is_message(of.names[0]) or of.rank not in slow:
                continue
            partners = {replay.program.nodes[other].rank for other in replay.partners(node)}
            if partners <= slow:
                seconds.work[node, active] += self.extra_seconds


@dataclass(frozen=True, kw_only=True)
class UnequalBatches(Fault):
    """Each microbatch of a replica has its own size, the same on all stages; together they hold as much."""

    sigma: float
    cause = Cause.UNEQUAL_BATCHES

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        program = replay.program
        passes = _passes(replay)
        microbatches = max(program.nodes[node].microbatch for node in passes) + 1
        replicas = max(program.replica_of.values()) + 1
        size = np.exp(self.sigma * random.standard_normal((replicas, microbatches, len(program.steps))))
        size /= size.mean()
        for node in passes:
            of = program.nodes[node]
            seconds.work[node] *= size[program.replica_of[of.rank], of.microbatch]


@dataclass(frozen=True, kw_only=True)
class Jitter(Fault):
    """A share of all computations, on any rank, takes longer."""

    share: float
    factor: float
    cause = Cause.JITTER

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        for node in _passes(replay):
            late = random.random(len(replay.program.steps)) < self.share
            seconds.work[node, late] *= 1.0 + (self.factor - 1.0) * random.uniform(0.5, 1.5, int(late.sum()))


@dataclass(frozen=True, kw_only=True)
class ChipSpread(Fault):
    """Every rank has a speed of its own. It belongs to the job, and is no fault."""

    sigma: float

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        ranks = sorted(replay.program.stage_of)
        speed = dict(zip(ranks, np.exp(self.sigma * random.standard_normal(len(ranks))), strict=True))
        for node in _computation(replay):
            seconds.work[node] *= speed[replay.program.nodes[node].rank]


@dataclass(frozen=True, kw_only=True)
class Drift(Fault):
    """All ranks become slower from the first step to the last. Nobody holds up anybody."""

    growth: float

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        factor: Floats = np.linspace(1.0, 1.0 + self.growth, len(replay.program.steps))
        for node in _computation(replay):
            seconds.work[node] *= factor


@dataclass(frozen=True, kw_only=True)
class AsRecorded(Fault):
    """What a real job had: these ranks, or the ranks of this stage, compute as long as in the recording."""

    cause: Cause
    slow_ranks: tuple[int, ...] = ()
    slow_stage: int | None = None
    phases = COMPUTE

    def slow(self, replay: Replay) -> frozenset[int]:
        """The ranks that compute longer."""
        of_stage = (rank for rank, stage in replay.program.stage_of.items() if stage == self.slow_stage)
        return frozenset(self.slow_ranks) | frozenset(of_stage)

    def ranks(self, replay: Replay) -> frozenset[int]:
        return frozenset(self.slow_ranks)

    def stages(self, replay: Replay) -> frozenset[int]:
        return frozenset() if self.slow_stage is None else frozenset({self.slow_stage})

    def inject(self, replay: Replay, seconds: Seconds, random: np.random.Generator) -> None:
        recorded = replay.recorded()
        slow = self.slow(replay)
        for node in _computation(replay):
            if replay.program.nodes[node].rank in slow:
                seconds.work[node] = recorded.work[node]


def _computation(replay: Replay) -> list[int]:
    """Nodes that compute and wait for nobody."""
    return [node for node in range(len(replay.program.nodes)) if replay.own_work(node)]


def _passes(replay: Replay) -> list[int]:
    """Forward and backward passes: computation that occurs once for each microbatch."""
    return [
        node
        for node in _computation(replay)
        if replay.program.nodes[node].kind is Kind.COMPUTE and replay.program.nodes[node].microbatch >= 0
    ]
