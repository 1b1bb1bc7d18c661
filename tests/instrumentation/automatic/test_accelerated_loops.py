"""What Accelerate does around a step of an optimizer, and before the first batch of an epoch."""

from __future__ import annotations

import importlib
import time
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("accelerate")

import accelerate.data_loader
import accelerate.optimizer
import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

from support.training.recorded import Recorded

pytestmark = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def _accelerate(recorded: Recorded) -> None:
    importlib.import_module("rankwatch.integrations.accelerate").patch_optimizers(accelerate.optimizer)


def prepared(accumulation: int = 1) -> tuple[Accelerator, torch.nn.Module, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    network = torch.nn.Linear(4, 1)
    return accelerator, *accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.1))


def test_begin(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Accelerate does before the step of torch's optimizer belongs to the optimizer phase."""
    asked: list[float] = []
    accelerator, network, optimizer = prepared()
    monkeypatch.setattr(
        accelerate.optimizer, "is_lomo_available", lambda: bool(asked.append(time.monotonic()))
    )
    accelerator.backward(network(torch.ones(2, 4)).mean())
    optimizer.step()
    (phase,) = [each for each in recorded.records() if each.name == "optimizer"]
    assert phase.start < asked[0] < phase.end


def test_accumulation(recorded: Recorded) -> None:
    """A step that only accumulates gradients is none."""
    accelerator, network, optimizer = prepared(accumulation=2)
    for _ in range(6):
        with accelerator.accumulate(network):
            accelerator.backward(network(torch.ones(2, 4)).mean())
            optimizer.step()
    passes = ["forward", "backward"]
    assert recorded.steps() == [[*passes, *passes, "optimizer"]] * 3


def test_failure(recorded: Recorded) -> None:
    """A step that raises is tried again, and is one step."""
    accelerator, network, optimizer = prepared()
    accelerator.backward(network(torch.ones(2, 4)).mean())
    handle = optimizer.optimizer.register_step_pre_hook(Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        optimizer.step()
    handle.remove()
    optimizer.step()
    assert len(recorded.steps()) == 1


def test_first_wait(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first wait of an epoch begins where ranks synchronize their random states for it."""
    synchronized: list[float] = []
    monkeypatch.setattr(
        accelerate.data_loader, "synchronize_rng_states", lambda *_: synchronized.append(time.monotonic())
    )
    importlib.import_module("rankwatch.integrations.accelerate").patch_loaders(accelerate.data_loader)
    _, network, optimizer = prepared()
    rows = TensorDataset(torch.ones(4, 4))
    for _ in range(2):
        for (batch,) in accelerate.data_loader.DataLoaderShard(rows, batch_size=2, rng_types=["torch"]):
            network(batch).mean().backward()
            optimizer.step()
    records = recorded.records()
    waits = [each for each in records if each.name == "data_wait"]
    steps = [each for each in records if each.kind.name == "STEP"]
    for step, moment in zip(steps[::2], synchronized, strict=True):
        assert any(step.start == each.start < moment < each.end for each in waits)
