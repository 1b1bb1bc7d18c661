"""Durations of layers: emulated ones, and those of a slow rank on a CPU or a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from rankwatch_trainer.faults import Conditions
from rankwatch_trainer.model import EmulatedBlock, slow_layers_on_cpu, slow_layers_on_cuda


def emulated(slept: list[float], conditions: Conditions, context: int = 2) -> EmulatedBlock:
    """A block whose forward takes 1 s and whose backward 2 s, which are only noted."""
    return EmulatedBlock(
        4, conditions, context=context, forward_seconds=1.0, backward_seconds=2.0, sleep=slept.append
    )


def test_slow_layers() -> None:
    """Each pass takes `compute_factor` times as long. If it takes 1 s, factor 2.5 adds 1.5 s."""
    slept: list[float] = []
    conditions = Conditions(compute_factor=2.5)
    layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
    slow_layers_on_cpu(layers, conditions, clock=itertools.count(0.0, 1.0).__next__, sleep=slept.append)
    x = torch.ones(1, 3, requires_grad=True)
    layers[1](layers[0](x)).sum().backward()
    assert slept == [1.5] * 4


def test_healthy_rank() -> None:
    """With factor 1 no layer sleeps."""
    slept: list[float] = []
    layer = nn.Linear(3, 3)
    slow_layers_on_cpu([layer], Conditions(), sleep=slept.append)
    layer(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert slept == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_slow_layer_on_gpu() -> None:
    """The duration grows roughly by the factor. The first passes measure how long the layer takes."""
    conditions = Conditions(compute_factor=4.0)
    layer = nn.Linear(8192, 8192, device="cuda")
    x = torch.randn(8192, 8192, device="cuda", requires_grad=True)
    for _ in range(3):  # a GPU at rest has a slow clock, and how far it spins is measured once
        layer(x).sum().backward()
    slow_layers_on_cuda([layer], conditions)

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


def test_emulated_block() -> None:
    """It sleeps in the forward and in the backward pass. The present factor multiplies both durations."""
    slept: list[float] = []
    conditions = Conditions()
    block = emulated(slept, conditions)
    block(torch.ones(1, 2, 4)).sum().backward()
    conditions.compute_factor = 1.5
    block(torch.ones(1, 2, 4)).sum().backward()
    assert slept == [1.0, 2.0, 1.5, 3.0]


def test_gradients_of_emulated_block() -> None:
    """They are real, so that collectives and checkpoints carry real values."""
    block = emulated([], Conditions())
    x = torch.randn(1, 2, 4, requires_grad=True)
    out = block(x)
    assert torch.allclose(out, x + block.linear(x))
    out.square().sum().backward()
    assert x.grad is not None and all(weight.grad is not None for weight in block.parameters())


def test_no_gradients() -> None:
    """Without gradients, as in an evaluation, only the forward pass sleeps."""
    slept: list[float] = []
    with torch.no_grad():
        emulated(slept, Conditions())(torch.ones(1, 2, 4))
    assert slept == [1.0]


def test_short_sequences() -> None:
    """Both durations are those of a full context, and shrink in proportion for shorter sequences."""
    slept: list[float] = []
    emulated(slept, Conditions(), context=8)(torch.ones(1, 2, 4)).sum().backward()
    assert slept == [0.25, 0.5]
