"""The cases that judge the engine: faults injected into real jobs, and what a verdict on each may be.

A variant is the table as another recorder would have written it: fewer columns, other clocks, other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.table import OperationTable
from support.retimer.faults import (
    ChipSpread,
    Drift,
    Fault,
    Jitter,
    SlowDataLoading,
    SlowLink,
    SlowRank,
    SlowStage,
    Stall,
    UnequalBatches,
)
from support.retimer.job import Base, FaultyJob
from support.retimer.real_jobs import JOBS, KNOWN, SHAPES, TABLES, healthy, repaired, simulated

LEAST_COST = 1.01
"""A fault that costs less may be left out of the head of a verdict."""

_FEW_PASSES = 40
"""Of a rank, in all its steps: with fewer a verdict may abstain."""
_HEAVY_STAGE = 1.15
_ALSO: Mapping[Cause, frozenset[Cause]] = MappingProxyType(
    {
        Cause.NONE: frozenset({Cause.INCONCLUSIVE}),
        Cause.JITTER: frozenset({Cause.INCONCLUSIVE}),
    }
)
"""What else may be said of a fault of this cause, whatever it costs."""


def _by_design(fault: Fault) -> bool:
    """A stage that takes less than this longer may hold the embedding or the loss."""
    return isinstance(fault, SlowStage) and fault.factor < _HEAVY_STAGE


@dataclass(frozen=True, kw_only=True)
class Case:
    """One table, what was done to it, and what is true of it."""

    name: str
    job: FaultyJob
    variant: str = ""
    may_abstain: bool = False
    """True if the table does not hold enough to tell."""

    def table(self) -> OperationTable:
        return VARIANTS[self.variant](self.job.table())

    def slowdown(self, of: Sequence[int] | None = None) -> float:
        """Of the steps in the table: with all faults over without those of these indices; None: all."""
        last = last_of(self.variant)
        chosen = frozenset(range(len(self.job.faults)) if of is None else of)
        without = self.job.step_seconds(chosen)[-last:]
        return float(self.job.step_seconds()[-last:].sum() / without.sum())

    def acceptable(self) -> frozenset[Cause]:
        """Causes that the head of the verdict may have."""
        causes = {fault.cause for fault in self.job.faults} or {Cause.NONE}
        also = frozenset().union(*(_ALSO.get(cause, frozenset()) for cause in causes))
        if self.slowdown() < LEAST_COST or all(map(_by_design, self.job.faults)):
            causes |= {Cause.NONE, Cause.INCONCLUSIVE}
        if Cause.UNEQUAL_BATCHES in causes and len(set(self.job.base.replay.program.stage_of.values())) == 1:
            # With one stage, a long microbatch and a late rank are the same thing.
            causes |= {Cause.JITTER, Cause.NONE, Cause.INCONCLUSIVE}
        return (
            frozenset(causes) | also | (frozenset({Cause.INCONCLUSIVE}) if self.may_abstain else frozenset())
        )

    def number_of(self, rank: int) -> int:
        """What the table calls a rank of the recording: variants renumber ranks."""
        recorded = sorted(self.job.base.replay.program.stage_of)
        if self.variant == "gaps":
            return 8 * recorded.index(rank)
        return recorded.index(rank) if self.variant == "no gaps" else rank


def all_cases() -> list[Case]:
    """Every case, in a fixed order; without the recorded tables, those of the simulated jobs."""
    cases: list[Case] = []
    if TABLES.is_dir():
        for name in JOBS:
            base, draw = healthy(name), _Draw(healthy(name))
            cases += _cases(name, base, [*_single(draw), *_several(draw), *_with_conditions(draw)])
            cases += _as_recorded(name, draw)
            cases += _in_variants(name, base, draw)
    for name in SHAPES:
        base, draw = simulated(name), _Draw(simulated(name))
        entries = _single(draw), _several(draw), _with_conditions(draw)
        cases += _cases(name, base, [entry for part in entries for entry in part if draw.fits(entry)])
    return cases


def _cases(name: str, base: Base, entries: Sequence[_Entry]) -> Iterator[Case]:
    for seed, (label, faults, conditions) in enumerate(entries):
        job = FaultyJob(base=base, faults=faults, conditions=conditions, seed=seed)
        yield Case(name=f"{name} {label}", job=job)


def _in_variants(name: str, base: Base, draw: _Draw) -> Iterator[Case]:
    for seed, (label, faults, _) in enumerate(_to_vary(draw)):
        job = FaultyJob(base=base, faults=faults, seed=seed)
        yield from (_varied(f"{name} {label}", job, variant) for variant in VARIANTS if variant)


_Entry = tuple[str, tuple[Fault, ...], tuple[Fault, ...]]
"""Name, faults, conditions."""


class _Draw:
    """Ranks, stages and replicas by chance, the same ones each time."""

    def __init__(self, base: Base) -> None:
        program = base.replay.program
        self._random = np.random.default_rng(len(program.stage_of))
        self._ranks = sorted(program.stage_of)
        self._first = [rank for rank in self._ranks if program.stage_of[rank] == 0]
        self.stages = max(program.stage_of.values()) + 1
        self.replicas = max(program.replica_of.values()) + 1
        works = [base.seconds.work[node] for node in range(len(program.nodes)) if base.replay.own_work(node)]
        self.usual_seconds = float(np.median(works))

    def fits(self, entry: _Entry) -> bool:
        """Slow stages and links need a pipeline."""
        return self.stages > 1 or not any(isinstance(fault, SlowStage | SlowLink) for fault in entry[1])

    def ranks(self, count: int) -> list[int]:
        return [int(rank) for rank in self._random.choice(self._ranks, count, replace=False)]

    def rank(self) -> int:
        return self.ranks(1)[0]

    def first_stage_rank(self) -> int:
        return int(self._random.choice(self._first))

    def stage(self) -> int:
        return int(self._random.integers(self.stages))

    def replica(self) -> int:
        return int(self._random.integers(self.replicas))


def _entry(name: str, *faults: Fault, conditions: tuple[Fault, ...] = ()) -> _Entry:
    return name, faults, conditions


def _single(draw: _Draw) -> Iterator[_Entry]:
    for factor in (1.03, 1.05, 1.08, 1.12, 1.2, 1.3, 1.5, 2.0):
        yield _entry(f"slow rank {factor}", SlowRank(rank=draw.rank(), factor=factor))
    for factor in (1.1, 1.3, 1.6):
        yield _entry(f"slow forward {factor}", SlowRank(rank=draw.rank(), factor=factor, only="forward"))
    for window in ("second half", "a fifth", "every third", "every fifth"):
        for factor in (1.15, 1.4):
            slow = SlowRank(rank=draw.rank(), factor=factor, window=window)
            yield _entry(f"slow rank {factor}, {window}", slow)
    for factor in (1.1, 1.2, 1.3, 1.5, 1.8):
        yield _entry(f"slow stage {factor}", SlowStage(stage=draw.stage(), factor=factor))
    for window in ("second half", "every third"):
        heavy = SlowStage(stage=draw.stage(), factor=1.4, window=window)
        yield _entry(f"slow stage 1.4, {window}", heavy)
    for share, every, window in (
        (0.1, 1, "whole"),
        (0.3, 1, "whole"),
        (0.5, 2, "whole"),
        (1.5, 4, "whole"),
        (0.5, 1, "every third"),
    ):
        stall = Stall(rank=draw.rank(), share=share, every=every, window=window)
        yield _entry(f"stall {share} before 1 in {every} passes, {window}", stall)
    for share in (0.1, 0.3, 1.0):
        yield _entry(f"loading {share}", SlowDataLoading(rank=draw.first_stage_rank(), share=share))
    yield from _of_everybody(draw)


def _of_everybody(draw: _Draw) -> Iterator[_Entry]:
    for share in (0.02, 0.1, 0.3):
        extra = share * draw.usual_seconds
        stage = draw.stage() % max(1, draw.stages - 1)
        link = SlowLink(replica=draw.replica(), stage=stage, extra_seconds=extra)
        yield _entry(f"slow link {share}", link)
        whole = SlowLink(replica=draw.replica(), stage=None, extra_seconds=extra)
        yield _entry(f"slow transfers of a replica {share}", whole)
    for sigma in (0.05, 0.1, 0.2, 0.4):
        yield _entry(f"unequal batches {sigma}", UnequalBatches(sigma=sigma))
    for factor in (2.0, 4.0):
        yield _entry(f"jitter {factor}", Jitter(share=0.01, factor=factor))


def _several(draw: _Draw) -> Iterator[_Entry]:
    for windows in (("whole", "second half"), ("second half", "a fifth"), ("whole", "every third")):
        for factors in ((1.2, 1.3), (1.5, 1.5)):
            faults = (
                SlowRank(rank=rank, factor=factor, window=window)
                for rank, factor, window in zip(draw.ranks(2), factors, windows, strict=True)
            )
            yield _entry(f"two slow ranks {factors}, {windows}", *faults)
    stage, rank = SlowStage(stage=draw.stage(), factor=1.3), SlowRank(rank=draw.rank(), factor=1.5)
    yield _entry("slow stage 1.3 and slow rank 1.5", stage, rank)
    slow = SlowRank(rank=draw.rank(), factor=1.3)
    yield _entry("unequal batches 0.1 and slow rank 1.3", UnequalBatches(sigma=0.1), slow)


def _with_conditions(draw: _Draw) -> Iterator[_Entry]:
    for sigma in (0.01, 0.02, 0.03):
        spread = (ChipSpread(sigma=sigma),)
        yield _entry(f"spread {sigma}", conditions=spread)
        yield _entry(f"spread {sigma}, again", conditions=spread)
        for factor in (1.08, 1.12, 1.3):
            slow = SlowRank(rank=draw.rank(), factor=factor)
            yield _entry(f"spread {sigma}, slow rank {factor}", slow, conditions=spread)
        heavy = SlowStage(stage=draw.stage(), factor=1.3)
        yield _entry(f"spread {sigma}, slow stage 1.3", heavy, conditions=spread)
    jitter = (Jitter(share=0.01, factor=2.0),)
    yield _entry("late operations, slow rank 1.2", SlowRank(rank=draw.rank(), factor=1.2), conditions=jitter)
    stage = SlowStage(stage=draw.stage(), factor=1.4)
    yield _entry("late operations, slow stage 1.4", stage, conditions=jitter)
    for growth in (0.05, 0.2):
        yield _entry(f"drift {growth}", conditions=(Drift(growth=growth),))
    slow = SlowRank(rank=draw.rank(), factor=1.2)
    yield _entry("drift 0.1, slow rank 1.2", slow, conditions=(Drift(growth=0.1),))
    yield _entry("healthy")


def _to_vary(draw: _Draw) -> Iterator[_Entry]:
    yield _entry("slow rank 1.3", SlowRank(rank=draw.rank(), factor=1.3))
    yield _entry("slow stage 1.4", SlowStage(stage=draw.stage(), factor=1.4))
    yield _entry("healthy")


def _as_recorded(name: str, draw: _Draw) -> Iterator[Case]:
    base, known = repaired(name), KNOWN[name]
    for variant in VARIANTS:
        yield _varied(f"{name} as recorded", FaultyJob(base=base, faults=(known,)), variant)
    others = sorted(set(base.replay.program.stage_of) - known.slow(base.replay))
    second = SlowRank(rank=others[draw.stage() + 1], factor=1.6)
    job = FaultyJob(base=base, faults=(known, second))
    yield Case(name=f"{name} as recorded and slow rank 1.6", job=job)


def _varied(name: str, job: FaultyJob, variant: str) -> Case:
    few = last_of(variant) * job.base.passes < _FEW_PASSES
    little = few or variant in ("no sends", "no receives")
    label = f"{name}, {variant}" if variant else name
    return Case(name=label, job=job, variant=variant, may_abstain=little)


def _with_own_clocks(table: OperationTable) -> OperationTable:
    """Clocks of the ranks differ by up to 5 s, and by up to 50 millionths of the time that passes."""
    random = np.random.default_rng(5)
    ranks, index = np.unique(table.rank, return_inverse=True)
    offset, drift = random.uniform(-5.0, 5.0, len(ranks)), random.uniform(-5e-5, 5e-5, len(ranks))
    # The steps of the recordings begin at 0 each; between them lies the time that was not recorded.
    _, number = np.unique(table.step, return_inverse=True)
    passed = 100.0 * number + table.start_seconds
    return replace(table, start_seconds=table.start_seconds + offset[index] + drift[index] * passed)


def _last_steps(count: int) -> Callable[[OperationTable], OperationTable]:
    return lambda table: table.take(table.step >= np.unique(table.step)[-count])


def _named(table: OperationTable, part: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    chosen = [index for index, name in enumerate(table.operations) if part in name]
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.isin(table.operation, chosen)
    return found


VARIANTS: Mapping[str, Callable[[OperationTable], OperationTable]] = MappingProxyType(
    {
        "": lambda table: table,
        "no groups": lambda table: replace(table, group=np.zeros_like(table.group), groups=("",)),
        "no sends": lambda table: table.take(~_named(table, "send")),
        "no receives": lambda table: table.take(~_named(table, "recv")),
        "own clocks": _with_own_clocks,
        "shuffled": lambda table: table.take(np.random.default_rng(6).permutation(len(table))),
        # One rank of each tensor-parallel group is recorded.
        "gaps": lambda table: replace(table, rank=8 * np.unique(table.rank, return_inverse=True)[1]),
        "no gaps": lambda table: replace(
            table, rank=np.unique(table.rank, return_inverse=True)[1].astype(np.int64)
        ),
        **{f"{count} steps": _last_steps(count) for count in (1, 2, 4)},
    }
)


def last_of(variant: str) -> int:
    """How many steps a variant leaves in the table."""
    count, _, unit = variant.partition(" ")
    return int(count) if unit == "steps" else _ALL


_ALL = 1 << 30
