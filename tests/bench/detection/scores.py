"""Scores over trials: ranks named rightly, wrongly and not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .trial import Trial

SLOW = "compute"
"""The phase of a rank that computes slowly. Other causes have other phases or none."""

Namer = Callable[[Trial], Iterable[int]]
"""Returns the ranks that a method names as slow."""


class Named(NamedTuple):
    """Ranks over several jobs."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        """Share of the named ranks that were slow; 1 if none was named."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        """Share of the slow ranks that were named; 1 if none was slow."""
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0


def named(trials: Iterable[Trial], namer: Namer) -> Named:
    """Slow ranks named by a method."""
    right = wrong = missed = 0
    for trial in trials:
        found = set(namer(trial))
        slow = set(trial.truth["ranks"]) if trial.truth["phase"] == SLOW else set()
        right, wrong, missed = (
            right + len(found & slow),
            wrong + len(found - slow),
            missed + len(slow - found),
        )
    return Named(right, wrong, missed)


def by_engine(trial: Trial) -> Sequence[int]:
    """Slow ranks that the engine names, in the head of the verdict or behind it."""
    ranks: Sequence[int] = trial.verdict["slow_ranks"]
    return ranks


def by_baseline(name: str) -> Namer:
    """Slow ranks that a baseline names."""
    return lambda trial: trial.baselines[name]


def falsely_named(trial: Trial) -> bool:
    """True if the engine names a rank that is not at fault, under any cause."""
    return not set(trial.verdict["ranks"]) <= set(trial.truth["ranks"])


def right_cause(trial: Trial) -> bool:
    """True if the engine names the cause, and for a stage also the right one."""
    verdict, truth = trial.verdict, trial.truth
    if (verdict["cause"], verdict["phase"]) != (truth["cause"], truth["phase"]):
        return False
    return truth["cause"] != "slow_stage" or list(verdict["stages"]) == list(truth["stages"])


def slowdown_error(trial: Trial) -> float | None:
    """Relative error of the what-if slowdown; None if the cause was not found."""
    if not right_cause(trial) or trial.truth["cause"] == "none":
        return None
    return abs(float(trial.verdict["slowdown"]) / float(trial.truth["slowdown"]) - 1.0)


def first_step_error(trial: Trial) -> float:
    """Steps between the reported first step and the true one; infinite if none is reported."""
    named_step = trial.verdict["first_step"]
    return float("inf") if named_step is None else float(abs(named_step - trial.truth["first_step"]))


def share(trials: Sequence[Trial], holds: Callable[[Trial], bool]) -> float:
    """Share of trials for which `holds` is true; 1 if there are none."""
    return sum(map(holds, trials)) / len(trials) if trials else 1.0
