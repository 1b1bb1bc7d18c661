"""The table of the detection bench, and the scores in it: ranks named rightly, wrongly and not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

from ..result import Result, Row, limited, quantile, spread
from .mixture import HOST_WORK, LEAST_COST, SLOW_3, SLOW_5, SLOW_MORE
from .trial import RULES, Trial

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


PRECISION = 0.99
RECALL = 0.95
PRECISION_3 = 0.95
DELAY_STEPS = 8
NOBODY_NAMED = 0.995
RIGHT_CAUSE = 0.90
SLOWDOWN_ERROR = 0.03
FIRST_STEP_ERROR = 2

_SLOW_RANKS = (SLOW_3, SLOW_5, SLOW_MORE)
WITHOUT_SLOW_RANK = ("none", "unequal_batches", "slow_stage", "network", "jitter")
"""Classes without a rank that computes slowly."""


def result(trials: Sequence[Trial], seed_base: int) -> Result:
    """Rows for the engine, then for the baselines."""
    rows = [*_engine_rows(trials), *_baseline_rows(trials)]
    return Result(
        title=f"Detection: {len(trials)} simulated jobs, seed base {seed_base}",
        rows=tuple(rows),
        notes=_notes(trials),
        samples={"trials": [asdict(trial) for trial in trials]},
    )


def _engine_rows(trials: Sequence[Trial]) -> Iterator[Row]:
    yield from _slow_rank_rows(trials)
    healthy_compute = [trial for trial in trials if trial.label in WITHOUT_SLOW_RANK]
    named_in = sum(map(falsely_named, healthy_compute))
    nobody = 1.0 - named_in / max(1, len(healthy_compute))
    yield _at_least(
        "no wrong rank named, without a slow rank",
        nobody,
        NOBODY_NAMED,
        f"{named_in} of {len(healthy_compute)}",
    )
    yield _at_least("right cause, without a slow rank", share(healthy_compute, right_cause), RIGHT_CAUSE)
    for label in (*WITHOUT_SLOW_RANK, HOST_WORK):
        of_class = [trial for trial in trials if trial.label == label]
        wrong = sum(map(falsely_named, of_class))
        yield Row(
            f"right cause: {label}",
            f"{share(of_class, right_cause):.1%}",
            f"{len(of_class)} jobs, a wrong rank named in {wrong}",
        )
    yield from _slowdown_rows(trials)
    rows = sum(trial.rows for trial in trials)
    taken = sum(trial.seconds for trial in trials)
    yield Row("engine, per million rows", f"{1e6 * taken / max(1, rows):.2f} s")


def _slow_rank_rows(trials: Sequence[Trial]) -> Iterator[Row]:
    strong = [trial for trial in trials if trial.label in (SLOW_5, SLOW_MORE)]
    found = named(strong, by_engine)
    of = f"{found.right} right, {found.wrong} wrong, {found.missed} missed in {len(strong)} jobs"
    yield _at_least("slow rank >= 5 %: precision", found.precision, PRECISION, of)
    yield _at_least("slow rank >= 5 %: recall", found.recall, RECALL)
    yield _delay_row(strong)
    found_cause = [trial for trial in strong if right_cause(trial)]
    begun = share(found_cause, lambda trial: first_step_error(trial) <= FIRST_STEP_ERROR)
    yield Row("slow rank >= 5 %: first step right within 2", f"{begun:.1%}", f"{len(found_cause)} jobs")
    weak = [trial for trial in trials if trial.label == SLOW_3]
    found = named(weak, by_engine)
    yield _at_least("slow rank 3 %: precision", found.precision, PRECISION_3, f"{len(weak)} jobs")
    yield Row("slow rank 3 %: recall", f"{found.recall:.1%}")
    overall = named(trials, by_engine)
    yield Row("all jobs: precision of named ranks", f"{overall.precision:.1%}", f"{overall.wrong} wrong")


def _delay_row(trials: Sequence[Trial]) -> Row:
    """The median delay. A rank that was never named has an infinite delay."""
    never = float("inf")
    delays = [
        float(never if each is None else each) for trial in trials for each in trial.delay_steps.values()
    ]
    if not delays:
        return Row("slow rank >= 5 %: delay", "unknown")
    late = f"90 % within {quantile(delays, 0.9):g}"
    return limited("slow rank >= 5 %: median delay", spread(delays).median, DELAY_STEPS, _steps, late)


def _slowdown_rows(trials: Sequence[Trial]) -> Iterator[Row]:
    for label, kept in (("slow ranks", True), ("other causes", False)):
        errors = [
            error
            for trial in trials
            if (trial.label in _SLOW_RANKS) is kept and (error := slowdown_error(trial)) is not None
        ]
        if not errors:
            continue
        within = sum(error <= SLOWDOWN_ERROR for error in errors) / len(errors)
        spread_text = f"median {spread(errors).median:.2%}, within 3 %: {within:.1%} of {len(errors)}"
        what = f"what-if slowdown, largest error: {label}"
        yield limited(what, max(errors), SLOWDOWN_ERROR, "{:.2%}".format, spread_text)


def _baseline_rows(trials: Sequence[Trial]) -> Iterator[Row]:
    strong = [trial for trial in trials if trial.label in (SLOW_5, SLOW_MORE)]
    healthy_compute = [trial for trial in trials if trial.label in WITHOUT_SLOW_RANK]
    for name in RULES:
        namer = by_baseline(name)
        found = named(strong, namer)
        named_in = share(healthy_compute, lambda trial, namer=namer: bool(namer(trial)))
        yield Row(
            f"baseline, slow rank >= 5 %: {name}",
            f"precision {found.precision:.1%}, recall {found.recall:.1%}",
            f"names a rank in {named_in:.1%} of jobs without a slow rank",
        )


def _at_least(what: str, value: float, target: float, spread_text: str = "") -> Row:
    return Row(what, f"{value:.1%}", spread_text, f">= {target:.1%}", value >= target)


def _steps(value: float) -> str:
    return f"{value:g} steps"


def _notes(trials: Sequence[Trial]) -> tuple[str, ...]:
    sizes = sorted(trial.ranks for trial in trials)
    large = sum(size >= 1024 for size in sizes)
    return (
        f"{sizes[0]:,} to {sizes[-1]:,} ranks, {large} jobs of 1,024; noise of compute 2 to 5 %.",
        f"Causes other than a slow rank cost at least {LEAST_COST - 1:.0%} while they last, if they can.",
        "A wrong rank is one that is not at fault; ranks with a slow link or a slow host are at fault.",
        "A slow rank that was never named has an infinite delay.",
    )
