"""What the engine said of a case, and where it was wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.straggler.engine import diagnose
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict
from support.retimer.cases import LEAST_COST, Case


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case with its verdict."""

    name: str
    said: str
    """Cause, ranks or stages of the head."""
    truth: str
    true_slowdown: float
    """Of the faults that the head names; of all where it names none of them."""
    slowdown: float
    acceptable: bool
    innocents: tuple[str, ...]
    """Ranks and stages that were named and are not at fault."""
    costly_ranks: int
    """Faulty ranks that cost at least 1 %."""
    costly_ranks_found: int
    seconds: float
    """Of CPU, for the diagnosis."""

    @property
    def error(self) -> float | None:
        """Of the slowdown, as a share of the true excess; None where the cause is wrong or costs little."""
        if not self.acceptable or self.true_slowdown < LEAST_COST or self.said.startswith(_NOTHING):
            return None
        return abs(self.slowdown - self.true_slowdown) / (self.true_slowdown - 1.0)


_NOTHING = (Cause.NONE.value, Cause.INCONCLUSIVE.value)


def judge(case: Case) -> Outcome:
    """Diagnose the table of a case."""
    table = case.table()
    began = time.process_time()
    verdict = diagnose(table)
    seconds = time.process_time() - began
    listed = (verdict, *verdict.causes)
    replay, faults = case.job.base.replay, case.job.faults
    guilty = {case.number_of(rank) for fault in faults for rank in fault.ranks(replay)}
    heavy = {stage for fault in faults for stage in fault.stages(replay)}
    named = _Named.of([verdict, *(each for each in verdict.causes if each.certain)])
    abstains = case.may_abstain and verdict.cause is Cause.INCONCLUSIVE
    costly = frozenset[int]() if abstains else _costly_ranks(case)
    phases = frozenset().union(*(fault.phases for fault in faults))
    acceptable = verdict.cause in case.acceptable() and _names_right(verdict, guilty, heavy, phases)
    return Outcome(
        name=case.name,
        said=_in_words(verdict.cause_and_phase, verdict.ranks, verdict.stages),
        truth=" + ".join(
            _in_words(
                fault.cause, sorted(map(case.number_of, fault.ranks(replay))), sorted(fault.stages(replay))
            )
            for fault in faults
        )
        or "healthy",
        true_slowdown=case.slowdown(_meant(case, verdict)),
        slowdown=verdict.slowdown,
        acceptable=acceptable,
        innocents=named.besides(guilty, heavy),
        costly_ranks=len(costly),
        costly_ranks_found=len(costly & _Named.of(listed).ranks),
        seconds=seconds,
    )


@dataclass(frozen=True)
class _Named:
    ranks: frozenset[int]
    stages: frozenset[int]

    @classmethod
    def of(cls, entries: Sequence[Verdict | FoundCause]) -> _Named:
        return cls(
            frozenset(int(rank) for each in entries for rank in each.ranks),
            frozenset(int(stage) for each in entries for stage in each.stages),
        )

    def besides(self, ranks: set[int], stages: set[int]) -> tuple[str, ...]:
        return (
            *(f"rank {rank}" for rank in sorted(self.ranks - ranks)),
            *(f"stage {stage}" for stage in sorted(self.stages - stages)),
        )


def _names_right(verdict: Verdict, guilty: set[int], heavy: set[int], phases: frozenset[SlowPhase]) -> bool:
    """A slow rank must have a name and a right phase, and no verdict may have a wrong name."""
    if not set(verdict.ranks) <= guilty or not set(verdict.stages) <= heavy:
        return False
    if verdict.cause is Cause.SLOW_RANK:
        return bool(verdict.ranks) and verdict.phase in phases
    return verdict.cause is not Cause.SLOW_STAGE or bool(verdict.stages)


def _meant(case: Case, verdict: Verdict) -> list[int] | None:
    """Indices of the faults that the head names; None for all."""
    replay = case.job.base.replay
    meant = []
    for index, fault in enumerate(case.job.faults):
        ranks = set(map(case.number_of, fault.ranks(replay)))
        of_ranks = not ranks or bool(ranks & set(verdict.ranks)) or verdict.cause is Cause.NETWORK
        if fault.cause is verdict.cause and of_ranks:
            meant.append(index)
    return meant or None


def _costly_ranks(case: Case) -> frozenset[int]:
    """Slow ranks of which each costs at least 1 % by itself."""
    job = case.job
    return frozenset(
        case.number_of(rank)
        for index, fault in enumerate(job.faults)
        if fault.cause is Cause.SLOW_RANK and case.slowdown([index]) >= LEAST_COST
        for rank in fault.ranks(job.base.replay)
    )


def _in_words(cause: str, ranks: Sequence[int], stages: Sequence[int]) -> str:
    who = [f"ranks {','.join(map(str, ranks))}"] * bool(ranks)
    where = [f"stages {','.join(map(str, stages))}"] * bool(stages)
    return " ".join([cause, *who, *where])
