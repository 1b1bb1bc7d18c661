"""Ranks that lie above their peers for long are found; neither chance nor the spread of chips names one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankwatch_diagnosis.straggler.persistence import (
    Residuals,
    against_past,
    against_peers,
    lasting_spread,
    recurrent,
    scan,
)
from rankwatch_diagnosis.straggler.robust import leave_one_out_median, steady_mean
from rankwatch_diagnosis.straggler.thresholds import DEFAULT

Test = Callable[..., Any]


def noise(sigma: float, *size: int, seed: int = 0) -> np.ndarray:
    return sigma * np.random.default_rng(seed).standard_normal(size)


def found_in(values: np.ndarray, test: Test = scan, least_excess: float = 0.02) -> list[Any]:
    return list(test(_residuals(values), DEFAULT, least_excess=least_excess).found)


def test_noise() -> None:
    """The level accounts for the number of ranks and windows. Here no size of effect protects."""
    named = sum(bool(found_in(each, least_excess=0.0)) for each in noise(0.03, 200, 24, 64, seed=3))
    assert named <= 2


def test_lasting_excess() -> None:
    """It is found with its start, end and size."""
    values = noise(0.01, 40, 16)
    values[12:30, 4] += 0.05
    (found,) = found_in(values)
    assert (found.column, found.first, found.end) == (4, 12, 30)
    assert found.size == pytest.approx(0.05, abs=0.01)


def test_one_huge_step() -> None:
    """It does not last, however late the rank was."""
    values = noise(0.01, 40, 16)
    values[12, 4] += 5.0
    assert found_in(values) == []


def test_chance_run_of_late_steps() -> None:
    """Ranks are late one step in five, by far more than the noise of the others."""
    named = 0
    for seed in range(40):
        values = noise(0.01, 40, 32, seed=seed)
        values += np.where(np.random.default_rng(1000 + seed).random(values.shape) < 0.2, 0.3, 0.0)
        named += bool(found_in(values))
    assert named <= 1


def test_allowed_excess() -> None:
    """What healthy ranks may show for long is no finding, however long it lasts; what is more is one."""
    values = noise(0.002, 60, 64, seed=1)
    values[:, 3] += 0.04
    values[:, 4] += 0.08
    residuals = _residuals(values)._replace(allowed=np.full(64, 0.05))
    assert [each.column for each in scan(residuals, DEFAULT, least_excess=0.0).found] == [4]


def test_ranks_late_in_turn() -> None:
    """No rank is late more often than the others, so none is recurrent."""
    named = 0
    for seed in range(200):
        values = noise(0.01, 40, 16, seed=seed)
        late = np.random.default_rng(1000 + seed).random(values.shape) < 0.05 + 0.15 * (seed % 2)
        named += bool(found_in(values + np.where(late, 0.3, 0.0), recurrent))
    assert named <= 1


def test_peers() -> None:
    """A rank is compared with its own stage: a stage that does more is not a slow rank."""
    own = np.zeros((6, 6))
    own[:, 3:] = 1.0
    own[:, 4] += 0.1
    stage = np.array([0, 0, 0, 1, 1, 1])
    values = against_peers(own, stage, least_peers=3).values
    np.testing.assert_allclose(values[0], [0.0, 0.0, 0.0, -0.05, 0.1, -0.05])


def test_past() -> None:
    """The faster end of the run is the reference, whatever a rank's level is."""
    own = np.zeros((24, 6))
    own[:, 1] += 0.3
    own[12:, 1] += 0.1
    values = against_past(own, least_ranks=3).values
    np.testing.assert_allclose(values[[0, -1], 1], [0.0, 0.1])


def _residuals(values: np.ndarray) -> Residuals:
    return Residuals(values, np.zeros(values.shape[1]), np.zeros(values.shape[1]))


LAYOUTS = {
    "8 ranks": np.zeros(8, dtype=np.int64),
    "4 stages of 4": np.repeat(np.arange(4), 4),
    "8 stages of 2": np.repeat(np.arange(8), 2),
    "64 ranks": np.zeros(64, dtype=np.int64),
}


@pytest.mark.parametrize("stage", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("sigma", [0.01, 0.03])
def test_spread_of_a_job(stage: np.ndarray, sigma: float) -> None:
    """It is found within a factor that its degrees of freedom explain, with a slow rank among them or not."""
    found = []
    for seed in range(60):
        own = np.random.default_rng(seed).standard_normal((1, len(stage))) * sigma + stage
        own[0, 1] += 0.4 * (seed % 2)
        found.append(lasting_spread(own, stage, 0.0, DEFAULT.healthy_spread).sigma)
    assert 0.6 * sigma < np.median(found) < 1.4 * sigma


def test_bound() -> None:
    """It is that of Student's distribution: 3.747 for 4 degrees of freedom and a chance of 1 %."""
    unknown = lasting_spread(np.zeros((1, 1)), np.zeros(1, dtype=np.int64), 0.0, 0.01)
    assert unknown.bound(0.01) == pytest.approx(0.03747, rel=0.02)


def test_noise_is_no_spread() -> None:
    """Levels of few noisy steps differ by chance, and that is taken out."""
    own = 0.05 * np.random.default_rng(0).standard_normal((6, 256))
    found = lasting_spread(own, np.zeros(256, dtype=np.int64), 0.05, 0.005)
    assert found.sigma < 0.012


def test_leave_one_out_median() -> None:
    """As leaving each value out by hand."""
    random = np.random.default_rng(0)
    for count in (2, 3, 4, 7):
        values = random.random((5, count))
        values[0, 0] = np.nan
        found = leave_one_out_median(values, axis=1)
        for row in range(5):
            for column in range(count):
                others = np.delete(values[row], column)
                others = others[np.isfinite(others)]
                expected = np.median(others) if others.size else np.nan
                np.testing.assert_allclose(found[row, column], expected)


def test_leave_one_out_median_alone() -> None:
    """With nobody else there is none: the value itself must not be its own reference."""
    assert np.isnan(leave_one_out_median(np.array([[3.0]]), axis=1)).all()


def test_steady_mean() -> None:
    """One late operation of eight moves it far less than the mean; a shift of all moves it in full."""
    values = 0.03 * np.random.default_rng(0).standard_normal((200, 8))
    np.testing.assert_allclose(steady_mean(values + 0.05), steady_mean(values) + 0.05)
    assert np.std(steady_mean(values)) < 1.1 * np.std(values.mean(axis=1))
    struck = values.copy()
    struck[:, 0] += 1.0
    assert np.mean(struck.mean(axis=1)) > 0.12
    assert np.mean(steady_mean(struck)) < 0.02


def test_steady_mean_of_few_values() -> None:
    """It is their mean, without the gaps."""
    np.testing.assert_array_equal(steady_mean(np.array([[1.0, 3.0], [np.nan, 2.0]])), [2.0, 2.0])
