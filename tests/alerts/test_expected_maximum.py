"""The cost of uneven batches grows with the ranks that wait for each other."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from rankwatch_alerts.recording.unequal_batches import EXPECTED_MAXIMUM


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 64, 256, 1024])
def test_the_formula_is_within_a_twentieth_of_the_expected_maximum(ranks: int) -> None:
    """The exact value is the integral of x over the density of the largest of that many normal values."""
    normal, width = NormalDist(), 0.005
    points = [width * each for each in range(-1600, 1601)]
    exact = sum(width * x * ranks * normal.pdf(x) * normal.cdf(x) ** (ranks - 1) for x in points)
    formula = eval(EXPECTED_MAXIMUM.format(ranks=ranks), {"sqrt": math.sqrt, "ln": math.log})
    assert formula == pytest.approx(exact, rel=0.05)
