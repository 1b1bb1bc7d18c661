"""How soon a divergence can be told at all: by one who knows the curve, its noise and the divergence itself.

He adds up the logarithm of the likelihood ratio, and is sure once it is so large that he is wrong once in all
healthy steps of the benchmark (Moustakides 1986: no test is faster at the same rate of false alarms). Noise
counts as Gaussian, with the memory that it has. What a real detector cannot know is the mean, the noise, the
shape of what will come, and that a healthy loss, too, rises by a few percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from rankwatch_agent.training.learning.loss import ALLOWED_RISE
from support.diagnosis.loss_curves import Curve, Truth

from .loss_detection import quantiles

MOST_STEPS = 800
"""From the turn on. Who needs more is not counted as one who finds it."""


def needed(curve: Curve, healthy_steps: int, *, allowed_rise: float = 0.0) -> int | None:
    """Steps from the onset to certainty, 0 before it; None if that takes too long.

    allowed_rise: a rise by this part is healthy, too, and no evidence.
    """
    if curve.truth is None or curve.turn is None or curve.onset is None:
        return None
    for since, evidence in enumerate(_evidence(curve.truth, allowed_rise)):
        if evidence >= math.log(healthy_steps):
            return max(0, curve.turn + since - curve.onset)
    return None


def _evidence(truth: Truth, allowed_rise: float) -> list[float]:
    """The mean of the logarithm of the likelihood ratio after each step from the turn on."""
    rises = torch.tensor(truth.rises[:MOST_STEPS], dtype=torch.float64) / truth.sigma
    if allowed_rise:
        rises = (rises - allowed_rise / truth.sigma).clamp(min=0.0)
    steps = torch.arange(len(rises), dtype=torch.float64)
    apart = (steps[:, None] - steps[None, :]).abs()
    covariance = sum(
        (size**2 * (memory**apart if memory else torch.eye(len(rises), dtype=torch.float64)))
        for size, memory in truth.memories
    )
    assert isinstance(covariance, torch.Tensor)
    # The factor of the first steps is that of all, so one factor serves for every number of steps.
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, rises[:, None], upper=False)[:, 0]
    return (0.5 * white.square().cumsum(0)).tolist()


def limits(given: Iterable[tuple[str, Curve]], healthy_steps: int) -> str:
    """A Markdown table of delays by kind: of one who knows all, and where small rises are healthy, too."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for kind, curve in given:
        if curve.truth is not None:
            for delays, allowed in zip(found.setdefault(kind, ([], [])), (0.0, ALLOWED_RISE), strict=True):
                delay = needed(curve, healthy_steps, allowed_rise=allowed)
                delays.append(MOST_STEPS if delay is None else delay)
    lines = [
        ("kind", "who knows all", f"who knows all, and that a rise of {ALLOWED_RISE:.0%} is healthy"),
        ("---",) * 3,
        *((kind, *map(quantiles, both)) for kind, both in found.items()),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
