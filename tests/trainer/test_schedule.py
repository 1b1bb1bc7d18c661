"""Warm-up and cosine."""

from __future__ import annotations

import pytest

from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.schedule import learning_rate


def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_final_value() -> None:
    """The last step trains with the final learning rate, the first after the warm-up with the peak."""
    config = TrainerConfig(steps=100, warmup_steps=10, learning_rate=1.0, final_learning_rate=0.1)
    rates = [learning_rate(config, completed) for completed in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(0.1)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_run_shorter_than_its_warm_up_works() -> None:
    """No division by nothing."""
    config = TrainerConfig(steps=3, warmup_steps=10)
    assert learning_rate(config, 2) < config.learning_rate
    assert learning_rate(TrainerConfig(steps=1, warmup_steps=0), 0) == TrainerConfig().learning_rate
