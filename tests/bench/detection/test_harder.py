"""The scenarios beyond the mixture: the right answers to each, and how they are counted."""

from __future__ import annotations

import numpy as np

from bench.detection.harder import SCENARIOS, SHORT_STEPS, Answer, attempt_harder, harder_rows
from rankwatch.conventions.states import Cause


def test_scenarios() -> None:
    """Every scenario gives a usable table, and only ranks that it holds may be named."""
    for scenario, puzzle_of in SCENARIOS.items():
        puzzle = puzzle_of(1, 5)
        assert len(puzzle.table) > 0, scenario
        assert np.isfinite(puzzle.table.duration_seconds).all()
        assert set(puzzle.ranks) <= set(puzzle.table.rank.tolist())
        assert puzzle.causes


def test_partial_tables() -> None:
    """They hold one node, a quarter of the ranks, or a few steps."""
    assert len(np.unique(SCENARIOS["ranks of one node"](0, 5).table.rank)) == 8
    assert len(set((SCENARIOS["every fourth rank"](0, 5).table.rank % 4).tolist())) == 1
    assert len(np.unique(SCENARIOS["5 steps"](0, 5).table.step)) == SHORT_STEPS


def test_two_causes() -> None:
    """Either cause is right, but of the ranks only the slow one."""
    puzzle = SCENARIOS["slow rank and unequal microbatches"](0, 5)
    assert puzzle.causes == (Cause.SLOW_RANK, Cause.UNEQUAL_BATCHES)
    assert len(puzzle.ranks) == 1


def test_answers_are_counted() -> None:
    """A job has the same answer again: right, abstained, a wrong rank or only a wrong cause."""
    scenario = "5 steps"
    assert attempt_harder(scenario, 0, 5) == attempt_harder(scenario, 0, 5)
    answers = [
        _answer(scenario, right=True),
        _answer(scenario, abstained=True),
        _answer(scenario, wrong_rank=True),
        _answer(scenario),
    ]
    row = next(each for each in harder_rows(answers) if scenario in each.what)
    assert row.measured == "a wrong rank named in 1 of 4"
    assert row.spread == "right 1, abstained 1, a wrong cause and no rank 1"
    assert row.target == ""


def _answer(
    scenario: str, *, right: bool = False, abstained: bool = False, wrong_rank: bool = False
) -> Answer:
    return Answer(scenario, 0, "none", (), right, abstained, wrong_rank)
