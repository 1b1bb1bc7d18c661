"""What counts as right and wrong in the detection bench."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bench.detection.baselines import RULES
from bench.detection.report import result
from bench.detection.scores import (
    by_baseline,
    by_engine,
    falsely_named,
    first_step_error,
    named,
    right_cause,
    slowdown_error,
)
from bench.detection.trial import Trial
from bench.table import as_markdown


def said(
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


def test_ranks_are_counted_as_right_wrong_and_missed() -> None:
    """Over all jobs together; a rank that loads data slowly is no slow rank."""
    trials = [
        trial(said("slow_rank", [1, 2]), said("slow_rank", [2, 3])),
        trial(said("slow_rank", [4]), said("none")),
        trial(said("slow_rank", [5], phase="data_loading"), said("slow_rank", [5], phase="data_loading")),
        trial(said("none"), said("slow_rank", [6])),
    ]
    counts = named(trials, by_engine)
    assert counts == (1, 2, 2)
    assert (counts.precision, counts.recall) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_nobody_named_is_precise_and_nobody_guilty_is_complete() -> None:
    """Not a division by zero."""
    counts = named([trial(said("none"), said("none"))], by_engine)
    assert (counts.precision, counts.recall) == (1.0, 1.0)


def test_a_wrong_name_is_wrong_under_any_cause() -> None:
    """A slow link's rank may be named where it is to blame, and nowhere else."""
    assert not falsely_named(trial(said("network", [3]), said("network", [3])))
    assert not falsely_named(trial(said("network", [3]), said("network")))
    assert falsely_named(trial(said("network"), said("network", [3])))
    assert falsely_named(trial(said("none"), said("slow_rank", [0])))


def test_a_stage_is_right_where_it_is_the_right_stage() -> None:
    """The cause alone is not enough."""
    assert right_cause(trial(said("slow_stage", stages=[1]), said("slow_stage", stages=[1])))
    assert not right_cause(trial(said("slow_stage", stages=[1]), said("slow_stage", stages=[0])))
    assert not right_cause(trial(said("unequal_batches"), said("jitter")))


def test_the_error_of_the_slowdown_is_a_share_of_the_truth() -> None:
    """And unknown where the cause was not found, or where there is none."""
    found = trial(said("slow_rank", [1], 1.10), said("slow_rank", [1], 1.21))
    assert slowdown_error(found) == pytest.approx(0.1)
    assert slowdown_error(trial(said("slow_rank", [1], 1.1), said("none"))) is None
    assert slowdown_error(trial(said("none"), said("none"))) is None


def test_a_first_step_that_was_not_told_is_endlessly_wrong() -> None:
    """Else the distance in steps."""
    truth = said("slow_rank", [1]) | {"first_step": 10}
    assert first_step_error(trial(truth, said("slow_rank", [1]) | {"first_step": 8})) == 2
    assert first_step_error(trial(truth, said("slow_rank", [1]) | {"first_step": None})) == float("inf")


def test_a_baseline_is_judged_like_the_engine() -> None:
    """By the ranks that it names."""
    each = trial(said("slow_rank", [1]), said("none"), baselines={"slowest step": (2,)})
    assert named([each], by_baseline("slowest step")) == (0, 1, 1)


def test_a_missed_target_is_shown() -> None:
    """A rank slower by 8 % that is never named misses recall and delay."""
    missed = trial(
        said("slow_rank", [1], 1.05), said("none"), label="slow_rank 5 to 10 %", delay_steps={1: None}
    )
    table = as_markdown(result([missed], 1))
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    assert "MISSED" in rows["slow rank >= 5 %: recall"]
    assert "MISSED" in rows["slow rank >= 5 %: median delay"]
    assert "met" in rows["slow rank >= 5 %: precision"]
