"""Ranks that lie above their peers for long are found, and chance alone names none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankwatch_diagnosis.straggler.persistence import Residuals, against_past, against_peers, recurrent, scan
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


@pytest.mark.parametrize(
    "late",
    [np.arange(0, 60, 3), np.r_[5:12, 40:46], np.array([3, 9, 10, 22, 30, 31, 45, 50, 52, 57])],
    ids=["each third step", "two episodes", "now and then"],
)
def test_part_of_the_steps(late: np.ndarray) -> None:
    """A rank may be slow in less than half of any window; the steps in which it is are known."""
    values = noise(0.01, 60, 16)
    values[late, 4] += 0.3
    found = {each.column: each for test in (recurrent, scan) for each in found_in(values, test)}
    assert list(found) == [4]
    assert np.flatnonzero(found[4].active).tolist() == late.tolist()
    assert found[4].size == pytest.approx(0.3, abs=0.02)


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
