"""What counts as right and wrong in the detection bench."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bench.detection.report import (
    by_baseline,
    by_engine,
    falsely_named,
    first_step_error,
    named,
    result,
    right_cause,
    slowdown_error,
)
from bench.detection.trial import RULES, Trial
from bench.result import as_markdown


def outcome(
    cause: str,
    ranks: Sequence[int] = (),
    slowdown: float = 1.0,
    stages: Sequence[int] = (),
    phase: str | None = None,
) -> Any:
    return {
        "cause": cause,
        "phase": phase or ("compute" if cause == "slow_rank" else None),
        "ranks": list(ranks),
        "slow_ranks": list(ranks) if (phase or "compute") == "compute" else [],
        "stages": list(stages),
        "slowdown": slowdown,
    }


def trial(truth: Any, verdict: Any, *, label: str = "none", **more: Any) -> Trial:
    facts: dict[str, Any] = {
        "number": 0,
        "ranks": 8,
        "rows": 100,
        "sigma": 0.03,
        "factor": 1.1,
        "delay_steps": {},
        "seconds": 1.0,
        "baselines": dict.fromkeys(RULES, ()),
    }
    return Trial(label=label, truth=truth, verdict=verdict, **{**facts, **more})


def test_named_ranks() -> None:
    """Counts run over all jobs; a rank that loads data slowly is not one that computes slowly."""
    trials = [
        trial(outcome("slow_rank", [1, 2]), outcome("slow_rank", [2, 3])),
        trial(outcome("slow_rank", [4]), outcome("none")),
        trial(
            outcome("slow_rank", [5], phase="data_loading"), outcome("slow_rank", [5], phase="data_loading")
        ),
        trial(outcome("none"), outcome("slow_rank", [6])),
    ]
    counts = named(trials, by_engine)
    assert counts == (1, 2, 2)
    assert (counts.precision, counts.recall) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_precision_and_recall_of_nothing() -> None:
    """Without named or slow ranks they are 1, not a division by zero."""
    counts = named([trial(outcome("none"), outcome("none"))], by_engine)
    assert (counts.precision, counts.recall) == (1.0, 1.0)


def test_falsely_named() -> None:
    """A wrong rank is wrong under any cause; the rank of a slow link may be named if it is at fault."""
    assert not falsely_named(trial(outcome("network", [3]), outcome("network", [3])))
    assert not falsely_named(trial(outcome("network", [3]), outcome("network")))
    assert falsely_named(trial(outcome("network"), outcome("network", [3])))
    assert falsely_named(trial(outcome("none"), outcome("slow_rank", [0])))


def test_right_stage() -> None:
    """The cause alone is not enough."""
    assert right_cause(trial(outcome("slow_stage", stages=[1]), outcome("slow_stage", stages=[1])))
    assert not right_cause(trial(outcome("slow_stage", stages=[1]), outcome("slow_stage", stages=[0])))
    assert not right_cause(trial(outcome("unequal_batches"), outcome("jitter")))


def test_slowdown_error() -> None:
    """It is a share of the truth, and unknown if the cause was not found or there is none."""
    found = trial(outcome("slow_rank", [1], 1.10), outcome("slow_rank", [1], 1.21))
    assert slowdown_error(found) == pytest.approx(0.1)
    assert slowdown_error(trial(outcome("slow_rank", [1], 1.1), outcome("none"))) is None
    assert slowdown_error(trial(outcome("none"), outcome("none"))) is None


def test_first_step_error() -> None:
    """A missing first step is infinitely wrong; otherwise the distance in steps counts."""
    truth = outcome("slow_rank", [1]) | {"first_step": 10}
    assert first_step_error(trial(truth, outcome("slow_rank", [1]) | {"first_step": 8})) == 2
    assert first_step_error(trial(truth, outcome("slow_rank", [1]) | {"first_step": None})) == float("inf")


def test_baseline_is_scored_like_the_engine() -> None:
    """By the ranks that it names."""
    each = trial(outcome("slow_rank", [1]), outcome("none"), baselines={"slowest step": (2,)})
    assert named([each], by_baseline("slowest step")) == (0, 1, 1)


def test_missed_target() -> None:
    """A rank slower by 8 % that is never named misses recall and delay, and the table shows it."""
    missed = trial(
        outcome("slow_rank", [1], 1.05), outcome("none"), label="slow_rank 5 to 10 %", delay_steps={1: None}
    )
    table = as_markdown(result([missed], 1))
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    assert "MISSED" in rows["slow rank >= 5 %: recall"]
    assert "MISSED" in rows["slow rank >= 5 %: median delay"]
    assert "met" in rows["slow rank >= 5 %: precision"]
