"""Sampling: all nodes choose the same steps without asking each other."""

from __future__ import annotations

import random

import pytest

from rankwatch_spans import steps
from rankwatch_spans.steps import Pace, by_chance


def test_chance_is_one_in_n_and_the_same_everywhere() -> None:
    """The hash depends on nothing but cluster, run and step."""
    chosen = [step for step in range(100_000) if by_chance("c", "job", step, 100)]
    assert 850 < len(chosen) < 1150
    assert not any(by_chance("c", "job", step, 0) for step in range(100))
    assert all(by_chance("c", "job", step, 1) for step in range(100))
    others = {step for step in range(100_000) if by_chance("c", "other", step, 100)}
    assert len(others & set(chosen)) < 100


def test_slow_steps() -> None:
    """Nothing is slow in a steady run; a step that takes twice as long is, and a new level soon is normal."""
    generator = random.Random(1)
    pace = Pace()
    assert sum(pace.add(0.1 * generator.lognormvariate(0.0, 0.03)) for _ in range(2000)) == 0
    assert pace.add(0.2)
    slow = [pace.add(0.2) for _ in range(500)]
    assert sum(slow) < steps.WINDOW_STEPS
    assert not any(slow[-100:])


def disagreement(jitter: float, steps: int = 20_000) -> tuple[int, int]:
    """Steps slow on one of two nodes, and on both.

    Both see the same durations, of which some are long, but for a jitter of their own.
    """
    generator = random.Random(2)
    nodes = (Pace(), Pace())
    one = both = 0
    for _ in range(steps):
        seconds = 0.1 * generator.lognormvariate(0.0, 0.05)
        if generator.random() < 0.03:
            seconds *= 1.0 + generator.expovariate(1.0)
        found = [pace.add(seconds * generator.lognormvariate(0.0, jitter)) for pace in nodes]
        one += sum(found) == 1
        both += sum(found) == 2
    return one, both


@pytest.mark.parametrize(("jitter", "most"), [(0.001, 0.01), (0.01, 0.06)])
def test_two_nodes_agree_on_slow_steps(jitter: float, most: float) -> None:
    """In synchronous training the durations of a step differ by less than a percent between nodes."""
    one, both = disagreement(jitter)
    assert both > 100
    assert one <= most * (one + both)
