"""The page on failed runs: rare while the objective is met, however many runs there are, and prompt when not.

The truth is computed here without the rules: the binomial distribution, and runs that begin, last and fail by
chance. The limit is the expression of the rule itself.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import ceil, comb, sqrt
from typing import NamedTuple

import pytest

from rankwatch_alerts import RuleConfig, recording_rules

CONFIG = RuleConfig()
EXPRESSION = next(
    each.expression
    for each in recording_rules(CONFIG)
    if each.record == "class:rankwatch_runs_failed_limit:count"
)
DAY = 24 * 12
"""In evaluations: the rules on objectives are evaluated every five minutes."""


def limit(runs: int, objective: float) -> float:
    """The rule's own expression, with numbers for its series."""
    plain = re.sub(r"on \(cluster, run_class\)", "", EXPRESSION).replace("clamp_min", "max")
    plain = plain.replace("class:rankwatch_runs_seen:count", str(runs))
    plain = plain.replace("class:rankwatch_run_success_objective:ratio", str(objective))
    assert "class:" not in plain
    return float(eval(plain, {"ceil": ceil, "max": max, "sqrt": sqrt}))


@pytest.mark.parametrize("objective", [0.8, 0.9, 0.95, 0.98, 0.99])
def test_chance(objective: float) -> None:
    """With the objective just met, as many failures are about as rare as the setting says, and they are one
    more than that takes at most: what stands for the binomial distribution costs a factor below 1.6."""
    for runs in range(2, 400):
        failing = 1 - objective
        exactly = [comb(runs, each) * failing**each * objective ** (runs - each) for each in range(runs + 1)]
        fewest = ceil(limit(runs, objective))
        assert sum(exactly[fewest:]) <= 1.6 * CONFIG.success_page_chance, runs
        assert fewest <= 2 or sum(exactly[fewest - 2 :]) > CONFIG.success_page_chance, runs


class Run(NamedTuple):
    """A run of the simulation; times in evaluations."""

    starts: float
    ends: float
    fails: bool


def simulated(runs_a_day: int, success: float, days: int) -> Iterator[Run]:
    """Runs that begin at any time and last for two hours in the mean."""
    chance = random.Random(f"{runs_a_day} {success}")
    time = 0.0
    while time < days * DAY:
        time += chance.expovariate(runs_a_day / DAY)
        yield Run(time, time + chance.expovariate(1 / 24), chance.random() > success)


def pages_in(runs: list[Run], objective: float, days: int) -> int:
    """How often the alert begins to fire, after the first day."""
    starts, ends = sorted(each.starts for each in runs), sorted(each.ends for each in runs)
    failures = sorted(each.ends for each in runs if each.fails)
    pages, firing = 0, False
    for now in range(DAY, days * DAY):
        seen = bisect_right(starts, now) - bisect_left(ends, now - DAY)
        failed = bisect_right(failures, now) - bisect_right(failures, now - DAY)
        fires = seen > 0 and failed >= limit_of(seen, objective)
        pages += fires and not firing
        firing = fires
    return pages


_KNOWN: dict[tuple[int, float], float] = {}


def limit_of(runs: int, objective: float) -> float:
    if (runs, objective) not in _KNOWN:
        _KNOWN[runs, objective] = limit(runs, objective)
    return _KNOWN[runs, objective]


@pytest.mark.parametrize(
    ("runs_a_day", "objective"), [(5, 0.99), (20, 0.95), (40, 0.9), (100, 0.95), (200, 0.95), (200, 0.99)]
)
def test_pages_of_a_year(runs_a_day: int, objective: float) -> None:
    """Fewer than one page in 20 days while each run fails by itself as often as the objective allows."""
    days = 200
    assert pages_in([*simulated(runs_a_day, objective, days)], objective, days) <= days / 20


@pytest.mark.parametrize(("runs_a_day", "objective"), [(20, 0.95), (100, 0.99), (200, 0.95)])
def test_a_cluster_that_fails(runs_a_day: int, objective: float) -> None:
    """A day on which a third of the runs fail pages."""
    assert pages_in([*simulated(runs_a_day, 0.66, 2)], objective, 2)
