"""Comparing runs that alternate."""

from __future__ import annotations

import pytest

from bench.training import Alternation


def test_a_machine_that_slows_down_steadily_is_no_slowdown() -> None:
    """Each run with rankwatch is held against the mean of the runs before and after it."""
    drifting = Alternation(without=[1.0, 1.2, 1.4], recorded=[1.1, 1.3])
    assert drifting.slowdowns() == pytest.approx([0.0, 0.0])


def test_a_cost_per_step_is_found_beside_the_drift() -> None:
    """One percent more than the neighbours is one percent."""
    slowed = Alternation(without=[0.1, 0.1, 0.1], recorded=[0.101, 0.102])
    assert slowed.slowdowns() == pytest.approx([0.01, 0.02])
    assert slowed.costs() == pytest.approx([0.001, 0.002])


def test_runs_without_rankwatch_show_the_noise() -> None:
    """Each is held against the one without before it."""
    assert Alternation([1.0, 1.1, 1.1], [1.0, 1.0]).differences_without() == pytest.approx([0.1, 0.0])
