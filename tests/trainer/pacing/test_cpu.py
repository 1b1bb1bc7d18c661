"""A straggler that computes on a CPU."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from rankwatch_trainer.faults.conditions import Conditions
from rankwatch_trainer.pacing.cpu import slow_layers_on_cpu


def test_each_layer_is_stretched_by_the_time_it_took_forward_and_backward() -> None:
    """With a clock on which everything takes one second, factor 2.5 adds 1.5 each time."""
    slept: list[float] = []
    conditions = Conditions(compute_factor=2.5)
    layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
    slow_layers_on_cpu(layers, conditions, clock=itertools.count(0.0, 1.0).__next__, sleep=slept.append)
    x = torch.ones(1, 3, requires_grad=True)
    layers[1](layers[0](x)).sum().backward()
    assert slept == [1.5] * 4


def test_a_healthy_rank_is_not_slowed() -> None:
    """Factor 1 sleeps nowhere."""
    slept: list[float] = []
    layer = nn.Linear(3, 3)
    slow_layers_on_cpu([layer], Conditions(), sleep=slept.append)
    layer(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert slept == []
