"""A plateau is a loss that no longer improves, whatever its noise and its spikes."""

from __future__ import annotations

import math
import random

import pytest

from rankwatch_agent.training.loss_blocks import PLATEAU_IMPROVEMENT, Plateau

STEPS = 2000


def improvements(losses: list[float], steps: int = STEPS) -> list[float]:
    """What a window of so many steps tells after each step from its first on."""
    plateau = Plateau(steps)
    found = []
    for step, loss in enumerate(losses):
        plateau.add(loss, step)
        if not math.isnan(plateau.improvement):
            found.append(plateau.improvement)
    return found


def noisy(clean: list[float], noise: float, seed: int) -> list[float]:
    source = random.Random(seed)
    return [loss * (1.0 + noise * source.gauss(0.0, 1.0)) for loss in clean]


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.03])
def test_loss_that_improves(noise: float) -> None:
    """A power law as of a real training is no plateau: in each fifth of the run it falls by a part."""
    clean = [1.7 + 6.0 * (1.0 + step / 20) ** -0.4 for step in range(5 * STEPS)]
    found = improvements(noisy(clean, noise, 1))
    assert len(found) > 3 * STEPS
    assert min(found) > PLATEAU_IMPROVEMENT


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
def test_loss_that_stands(noise: float) -> None:
    """A loss that falls no more is a plateau once that fills the window."""
    clean = [2.0 + 2.0 * math.exp(-step / 500) for step in range(6 * STEPS)]
    losses = noisy(clean, noise, 2)
    found = improvements(losses)
    assert found[0] > PLATEAU_IMPROVEMENT
    assert sum(each < PLATEAU_IMPROVEMENT for each in found[-STEPS:]) > 0.9 * STEPS


def test_noise_that_hides_an_improvement() -> None:
    """Where the noise could hide an improvement, nothing is called a plateau."""
    clean = [2.0 * 0.98 ** (step / 400) for step in range(4000)]
    assert min(improvements(noisy(clean, 0.3, 3), 400)) > PLATEAU_IMPROVEMENT


def test_repeated_steps() -> None:
    """Steps that a restart repeats tell nothing new, and steps that are left out make no window longer."""
    once, again = Plateau(STEPS), Plateau(STEPS)
    losses = [3.0 - step / 4000 for step in range(2 * STEPS)]
    for step, loss in enumerate(losses):
        once.add(loss, step)
        again.add(loss, step)
        if step == 1500:
            for repeated in range(1000, 1501):
                again.add(9.0, repeated)
    again.add(math.nan, 2 * STEPS)
    assert once.improvement == again.improvement
    assert once.improvement == pytest.approx(0.25, rel=0.2)
