"""Layers that take a given time asleep."""

from __future__ import annotations

import torch

from rankwatch_trainer.faults.conditions import Conditions
from rankwatch_trainer.pacing.emulated import EmulatedBlock


def test_a_layer_sleeps_in_forward_and_backward_and_a_straggler_longer() -> None:
    """Both times are multiplied by the compute factor of the moment."""
    slept: list[float] = []
    conditions = Conditions()
    block = EmulatedBlock(
        4, conditions, context=2, forward_seconds=1.0, backward_seconds=2.0, sleep=slept.append
    )
    block(torch.ones(1, 2, 4)).sum().backward()
    conditions.compute_factor = 1.5
    block(torch.ones(1, 2, 4)).sum().backward()
    assert slept == [1.0, 2.0, 1.5, 3.0]


def test_its_weights_get_gradients_that_are_real() -> None:
    """What collectives reduce and checkpoints hold is no fake."""
    block = EmulatedBlock(
        4, Conditions(), context=2, forward_seconds=0, backward_seconds=0, sleep=lambda seconds: None
    )
    x = torch.randn(1, 2, 4, requires_grad=True)
    out = block(x)
    assert torch.allclose(out, x + block.linear(x))
    out.square().sum().backward()
    assert x.grad is not None and all(weight.grad is not None for weight in block.parameters())


def test_without_gradients_only_the_forward_sleeps() -> None:
    """As in an evaluation."""
    slept: list[float] = []
    block = EmulatedBlock(
        4, Conditions(), context=2, forward_seconds=1.0, backward_seconds=2.0, sleep=slept.append
    )
    with torch.no_grad():
        block(torch.ones(1, 2, 4))
    assert slept == [1.0]


def test_shorter_sequences_take_less_time_in_proportion() -> None:
    """In both directions; the times given are those of a full context."""
    slept: list[float] = []
    block = EmulatedBlock(
        4, Conditions(), context=8, forward_seconds=1.0, backward_seconds=2.0, sleep=slept.append
    )
    block(torch.ones(1, 2, 4)).sum().backward()
    assert slept == [0.25, 0.5]
