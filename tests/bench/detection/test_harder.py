"""The scenarios beyond the mixture: what may be said of each, and how it is counted."""

from __future__ import annotations

import numpy as np

from bench.detection.harder import SCENARIOS, SHORT_STEPS, Answer, attempt_harder, harder_rows
from rankwatch.conventions import Cause


def test_every_scenario_gives_a_table_and_says_who_may_be_named() -> None:
    """Only ranks that the table holds."""
    for scenario, puzzle_of in SCENARIOS.items():
        puzzle = puzzle_of(1, 5)
        assert len(puzzle.table) > 0, scenario
        assert np.isfinite(puzzle.table.duration_seconds).all()
        assert set(puzzle.ranks) <= set(puzzle.table.rank.tolist())
        assert puzzle.causes


def test_a_part_of_a_job_is_a_part() -> None:
    """One node, or a quarter of the ranks, or a few steps."""
    assert len(np.unique(SCENARIOS["ranks of one node"](0, 5).table.rank)) == 8
    assert len(set((SCENARIOS["every fourth rank"](0, 5).table.rank % 4).tolist())) == 1
    assert len(np.unique(SCENARIOS["5 steps"](0, 5).table.step)) == SHORT_STEPS


def test_with_two_causes_either_may_be_told() -> None:
    """Of ranks only the slow one."""
    puzzle = SCENARIOS["slow rank and unequal microbatches"](0, 5)
    assert puzzle.causes == (Cause.SLOW_RANK, Cause.UNEQUAL_BATCHES)
    assert len(puzzle.ranks) == 1


def test_an_answer_is_the_same_whoever_asks_and_the_rows_count_it() -> None:
    """Right, abstained, a wrong rank, or only a wrong cause."""
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
