"""How long layers take: emulated, and stretched on a CPU or a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from rankwatch_trainer.faults.kinds import Conditions
from rankwatch_trainer.pacing import EmulatedBlock, slow_layers_on_cpu, slow_layers_on_cuda


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_layer_on_a_gpu_takes_longer_by_about_the_factor() -> None:
    """Measured on the GPU's own clock, after a first pass that tells how long the layer takes."""
    conditions = Conditions(compute_factor=4.0)
    layer = nn.Linear(8192, 8192, device="cuda")
    slow_layers_on_cuda([layer], conditions)
    x = torch.randn(8192, 8192, device="cuda", requires_grad=True)

    def milliseconds() -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        layer(x).sum().backward()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended)

    for _ in range(3):
        milliseconds()
    slow = milliseconds()
    conditions.compute_factor = 1.0
    assert 2.0 < slow / milliseconds() < 6.0


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
