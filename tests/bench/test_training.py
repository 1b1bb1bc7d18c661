"""The comparison of alternating runs with and without rankwatch."""

from __future__ import annotations

import pytest

from bench.training import Alternation


def test_drift() -> None:
    """A machine that slows down steadily shows no slowdown: neighbours are compared."""
    drifting = Alternation(without=[1.0, 1.2, 1.4], recorded=[1.1, 1.3])
    assert drifting.slowdowns() == pytest.approx([0.0, 0.0])


def test_slowdown_and_cost() -> None:
    """A run that takes one percent longer than its neighbours has a slowdown of one percent."""
    slowed = Alternation(without=[0.1, 0.1, 0.1], recorded=[0.101, 0.102])
    assert slowed.slowdowns() == pytest.approx([0.01, 0.02])
    assert slowed.added() == pytest.approx([0.001, 0.002])


def test_noise() -> None:
    """Each run without rankwatch is compared with the previous one without it."""
    assert Alternation([1.0, 1.1, 1.1], [1.0, 1.0]).noise() == pytest.approx([0.1, 0.0])
