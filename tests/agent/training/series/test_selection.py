"""Which ranks of a large run are exported, and what speaks for all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

import pytest

from rankwatch_agent.training.series import selection
from rankwatch_agent.training.series.selection import ComparedFigures, RankSelection, SelectedRanks, halves
from rankwatch_alerts.config import RuleConfig
from rankwatch_diagnosis.straggler import thresholds


def _standing(rank: int, local: float | None, *, stage: str = "0", **other: float) -> ComparedFigures:
    return ComparedFigures(
        rank=str(rank),
        stage=stage,
        local_seconds=local,
        token_seconds=other.get("token"),
        late_seconds=other.get("late", 0.0),
        loss=other.get("loss"),
        write_seconds=other.get("write"),
    )


def _choose(*seconds: float | None) -> frozenset[str]:
    return RankSelection().choose(_standing(rank, each) for rank, each in enumerate(seconds)).work


def test_slow_ranks_are_shown() -> None:
    """Each of them, and of equal ones at least one: a node may be slow as a whole; the last of each stage."""
    assert _choose(1.0, 1.2, 1.0, 1.1, 1.0, 1.0) == {"1", "3"}
    assert len(_choose(1.3, 1.3, 1.3, 1.3)) == 1
    assert _choose(None, None) == frozenset()
    stages = [_standing(rank, 1.0 + 0.01 * rank, stage=str(rank % 2)) for rank in range(4)]
    assert RankSelection().choose(stages).work == {"2", "3"}


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ([_standing(0, 1.0, token=0.1), _standing(1, 0.5, token=0.2)], {"work": {"0", "1"}}),
        ([_standing(0, 1.0), _standing(1, 0.9, late=0.3)], {"work": {"0"}, "lateness": {"1"}}),
        ([_standing(0, 1.0, loss=2.0), _standing(1, 1.0, loss=3.0)], {"work": {"0"}, "loss": {"0", "1"}}),
        ([_standing(0, 1.0, write=2.0), _standing(1, 1.0, write=3.0)], {"work": {"0"}, "writes": {"1"}}),
    ],
    ids=["time for a token", "late steps", "high and low loss", "slow writes"],
)
def test_other_ways_to_stand_out(ranks: Sequence[ComparedFigures], shown: dict[str, set[str]]) -> None:
    """A rank is shown by what it stands out in, and by nothing else: each series costs all rules."""
    assert RankSelection().choose(ranks) == SelectedRanks(**{of: frozenset(who) for of, who in shown.items()})


def test_equal_ranks_do_not_take_turns() -> None:
    """A series that comes and goes is a new one each time."""
    outstanding, draw = RankSelection(), random.Random(7)
    shown = {
        outstanding.choose(_standing(rank, 1.0 + 0.002 * draw.random()) for rank in range(8)).work
        for _ in range(50)
    }
    assert len(shown) == 1


def test_another_rank_becomes_the_last_one() -> None:
    outstanding = RankSelection()
    assert outstanding.choose([_standing(0, 1.01), _standing(1, 1.0)]).work == {"0"}
    assert outstanding.choose([_standing(0, 1.01), _standing(1, 1.2)]).work == {"1"}
    assert outstanding.choose([_standing(1, 1.2)]).work == {"1"}, "the other one has ended"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {}),
        ([3.0], {"lower": 3.0}),
        ([4.0, 2.0], {"lower": 2.0, "upper": 4.0}),
        ([1.0, 2.0, 3.0], {"lower": 1.5, "upper": 2.5}),
        ([float("nan"), 1.0], {"lower": 1.0}),
    ],
)
def test_halves(values: list[float], expected: dict[str, float]) -> None:
    assert halves(values) == expected


def test_halves_speak_for_all_ranks() -> None:
    """Of 500 nodes with 8 ranks: the median and the median absolute deviation are those of the ranks."""
    draw = random.Random(3)
    nodes = [[draw.gauss(1.0, 0.03) for _ in range(8)] for _ in range(500)]
    ranks = [each for node in nodes for each in node]
    points = [each for node in nodes for each in halves(node).values()]
    middle = median(ranks)
    assert median(points) == pytest.approx(middle, abs=0.002)
    deviation = median(abs(each - middle) for each in ranks)
    assert median(abs(each - middle) for each in points) == pytest.approx(deviation, rel=0.05)


def test_selected_before_the_rules_need_it() -> None:
    """A rank whose excess the rules may call slow must be exported well before: they see no other ranks."""
    assert 1.0 + RuleConfig().straggler_least_residual / 2 >= selection._ABOVE


def test_slow_for_all() -> None:
    """Whom the rules may call slow, the diagnosis does not take for too little slower to be a fault."""
    assert thresholds.DEFAULT.rank_ratio <= selection._ABOVE < 1.0 + RuleConfig().straggler_least_residual
