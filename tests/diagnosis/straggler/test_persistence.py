"""Ranks that lie above their peers for long are found, and chance alone names none."""

from __future__ import annotations

import numpy as np
import pytest

from rankwatch_diagnosis.straggler.persistence import Residuals, against_peers, scan
from rankwatch_diagnosis.straggler.thresholds import DEFAULT


def test_noise() -> None:
    """The level accounts for the number of ranks and windows. Here no size of effect protects."""
    random = np.random.default_rng(3)
    named = 0
    for _ in range(200):
        values = 0.03 * random.standard_normal((24, 64))
        named += bool(scan(_residuals(values), DEFAULT, least_excess=0.0).found)
    assert named <= 2


def test_lasting_excess() -> None:
    """It is found with its start, end and size."""
    values = 0.01 * np.random.default_rng(0).standard_normal((40, 16))
    values[12:30, 4] += 0.05
    (found,) = scan(_residuals(values), DEFAULT, least_excess=0.02).found
    assert (found.column, found.first, found.end) == (4, 12, 30)
    assert found.size == pytest.approx(0.05, abs=0.01)


def test_one_huge_step() -> None:
    """It does not last, however late the rank was."""
    values = 0.01 * np.random.default_rng(0).standard_normal((40, 16))
    values[12, 4] += 5.0
    assert scan(_residuals(values), DEFAULT, least_excess=0.02).found == ()


def test_chance_run_of_late_steps() -> None:
    """Ranks are late one step in five, by far more than the noise of the others."""
    named = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        values = 0.01 * random.standard_normal((40, 32))
        values += np.where(random.random(values.shape) < 0.2, 0.3, 0.0)
        named += bool(scan(_residuals(values), DEFAULT, least_excess=0.02).found)
    assert named <= 1


def test_spread_of_healthy_ranks() -> None:
    """Healthy devices differ for long, and the level follows their spread."""
    random = np.random.default_rng(1)
    values = 0.002 * random.standard_normal((60, 64)) + 0.015 * random.standard_normal(64)
    assert scan(_residuals(values), DEFAULT, least_excess=0.0).found == ()


def test_peers() -> None:
    """A rank is compared with its own stage: a stage that does more is not a slow rank."""
    own = np.zeros((6, 6))
    own[:, 3:] = 1.0
    own[:, 4] += 0.1
    stage = np.array([0, 0, 0, 1, 1, 1])
    values = against_peers(own, stage, least_peers=3).values
    np.testing.assert_allclose(values[0], [0.0, 0.0, 0.0, -0.05, 0.1, -0.05])


def test_pair() -> None:
    """Its level has no reference, so the faster end of the run is the reference."""
    own = np.zeros((24, 6))
    own[:, 1] += 0.3
    own[12:, 1] += 0.1
    values = against_peers(own, np.array([0, 0, 1, 1, 1, 1]), least_peers=3).values
    np.testing.assert_allclose(values[[0, -1], 1], [0.0, 0.1])


def _residuals(values: np.ndarray) -> Residuals:
    return Residuals(values, np.zeros(values.shape[1]))


def test_spread_of_few_ranks() -> None:
    """A table of few ranks cannot show how far healthy ones lie apart, so a minimum is assumed."""
    named_without, named = 0, 0
    for seed in range(80):
        random = np.random.default_rng(seed)
        values = 0.006 * random.standard_normal((40, 4)) + 0.005 * random.standard_normal(4)
        residuals = _residuals(values)
        named_without += bool(scan(residuals, DEFAULT, least_excess=0.0).found)
        found = scan(residuals, DEFAULT, least_excess=0.0, least_spread=DEFAULT.healthy_spread)
        named += bool(found.found)
    assert named_without > 8
    assert named == 0
