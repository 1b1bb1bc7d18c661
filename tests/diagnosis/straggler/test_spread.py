"""The spread of healthy accelerators, learnt from the ranks of a job, and the robust statistics below it."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch_diagnosis.straggler.persistence import lasting_spread
from rankwatch_diagnosis.straggler.robust import leave_one_out_median, steady_mean
from rankwatch_diagnosis.straggler.thresholds import DEFAULT

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
