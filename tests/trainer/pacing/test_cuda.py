"""A straggler that computes on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankwatch_trainer.faults.conditions import Conditions
from rankwatch_trainer.pacing.cuda import slow_layers_on_cuda


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
