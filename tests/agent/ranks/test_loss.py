"""Loss statistics: noise is no alarm, a spike is counted, a divergence stands out for good."""

from __future__ import annotations

import math
import random

import pytest

from rankwatch_agent.ranks.loss import LossStatistics


def curve(seed: int, steps: int, noise: float = 0.05) -> list[float]:
    """A falling loss with Gaussian noise."""
    source = random.Random(seed)
    return [1.5 + 4.0 * math.exp(-step / 80) + source.gauss(0.0, noise) for step in range(steps)]


def after(values: list[float]) -> LossStatistics:
    statistics = LossStatistics()
    for value in values:
        statistics.add(value)
    return statistics


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_curve_never_stands_above_its_trend(seed: int) -> None:
    """At no step of 1,000, and with hardly a spike."""
    statistics = LossStatistics()
    for value in curve(seed, 1000):
        statistics.add(value)
        assert not statistics.deviation > 3.0
    assert statistics.spikes <= 1
    assert statistics.nonfinite == 0
    assert statistics.sigma == pytest.approx(0.05, rel=0.5)


def test_a_single_spike_is_counted_and_soon_forgotten() -> None:
    """It recovers at once: information, no divergence."""
    statistics = after(curve(1, 400))
    before = statistics.trend
    statistics.add(before + 5.0)
    assert statistics.spikes == 1
    for value in curve(2, 430)[400:]:
        statistics.add(value)
    assert abs(statistics.deviation) < 3.0
    assert statistics.trend == pytest.approx(before, abs=0.1)


def test_a_divergence_is_seen_within_twenty_steps_and_stays() -> None:
    """A loss that climbs stands ever further above its trend."""
    statistics = after(curve(3, 400))
    level = statistics.trend
    for step in range(20):
        statistics.add(level + 0.1 * step)
    assert statistics.deviation > 6.0
    for _ in range(60):
        statistics.add(level + 3.0)
        assert statistics.deviation > 6.0


def test_values_that_are_not_finite_are_counted_and_leave_the_rest_alone() -> None:
    """NaN must not poison an average."""
    statistics = after([*curve(4, 100), math.nan, math.inf, -math.inf])
    assert statistics.nonfinite == 3
    assert math.isfinite(statistics.trend)
    assert math.isfinite(statistics.deviation)


def test_a_constant_loss_has_no_deviation() -> None:
    """Zero noise is no reason to divide by it."""
    assert after([2.0] * 100).deviation == pytest.approx(0.0)


def test_a_loss_near_the_end_of_all_numbers_leaves_no_nan() -> None:
    """The distance of two such values is infinite, and infinity minus itself is NaN."""
    assert math.isfinite(after([1e308, -1e308, 1e308, 1.0, 2.0] * 20).trend)
