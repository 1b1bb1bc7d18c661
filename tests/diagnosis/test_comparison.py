"""The factor between two sets of measurements, and how certain it is."""

from __future__ import annotations

import math
import random

import pytest

from rankwatch_diagnosis.comparison import shift_between


def steps(seed: int, *, level: float = 1.0, memory: float = 0.0, count: int = 400) -> list[float]:
    """Durations with log-normal noise of 5 % that carries over from step to step, and a few that are long."""
    random_numbers = random.Random(seed)
    noise, found = 0.0, []
    for _ in range(count):
        noise = memory * noise + math.sqrt(1 - memory**2) * random_numbers.gauss(0.0, 0.05)
        found.append(level * math.exp(noise) * (8.0 if random_numbers.random() < 0.01 else 1.0))
    return found


@pytest.mark.parametrize("memory", [0.0, 0.7])
def test_no_change(memory: float) -> None:
    """Runs of the same speed rarely seem to differ, also where neighbouring steps are alike."""
    wrong = 0
    for seed in range(100):
        shift = shift_between(steps(seed, memory=memory), steps(seed + 1000, memory=memory))
        assert shift is not None
        wrong += not shift.low <= 1.0 <= shift.high
    assert wrong <= 15  # 5 are meant


@pytest.mark.parametrize("factor", [0.9, 1.03, 1.5])
def test_change(factor: float) -> None:
    """The interval holds the true factor, and not 1."""
    shift = shift_between(steps(1), steps(2, level=factor))
    assert shift is not None
    assert shift.factor == pytest.approx(factor, rel=0.015)
    assert shift.low < factor < shift.high
    assert not shift.low <= 1.0 <= shift.high


@pytest.mark.parametrize(
    ("before", "after"),
    [([], [1.0] * 9), ([1.0] * 4, [1.0] * 9), ([0.0, math.nan, math.inf, -1.0, 1.0], [1.0] * 9)],
)
def test_too_few(before: list[float], after: list[float]) -> None:
    """Below five values nothing is certain; what is no duration is no value."""
    assert shift_between(before, after) is None


def test_equal_values() -> None:
    """Runs without noise differ by exactly their factor."""
    assert shift_between([2.0] * 10, [3.0] * 10) == pytest.approx((1.5, 1.5, 1.5))
