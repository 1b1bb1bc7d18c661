"""Modules that train themselves: their forward pass holds backward passes and the steps of optimizers, as a
LightningModule's with manual optimization does below DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from support.training.recorded import Recorded

FORWARD, BACKWARD, OPTIMIZER, WAIT = "forward", "backward", "optimizer", "data_wait"
PLAIN = [FORWARD, BACKWARD, OPTIMIZER]


class SelfTraining(nn.Module):
    """Trains a critic and a generator whenever it is called. returns_loss: as `training_step` often does."""

    def __init__(self, *, returns_loss: bool) -> None:
        super().__init__()
        self.networks = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in self.networks]
        self.returns_loss = returns_loss

    def forward(self, batch: Tensor) -> Any:
        for network, optimizer in zip(self.networks, self.optimizers, strict=True):
            loss = network(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss if self.returns_loss else None


@pytest.mark.parametrize("returns_loss", [True, False])
def test_self_training_module(recorded: Recorded, returns_loss: bool) -> None:
    """Each backward pass ends the forward pass that it lies in; no phase overlaps another one or the step's
    end, although the outer call returns after all of them."""
    module = SelfTraining(returns_loss=returns_loss)
    for (batch,) in DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2):
        module(batch)
    assert recorded.steps() == [[WAIT, *PLAIN, *PLAIN]] * 3
    assert recorded.backwards_in_time() == []
