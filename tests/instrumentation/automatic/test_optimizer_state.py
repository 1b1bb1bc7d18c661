"""Optimizers that step only to have their state allocated: that is no step of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from support.automatic.programs import errors, run_program
from support.training.blackbox import of_kind

pytest.importorskip("torch")
pytestmark = pytest.mark.process

RESUMED = """
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
model = torch.nn.Linear(2, 2)
def adam(): return torch.optim.Adam(model.parameters())
def train(optimizer):
    for batch in torch.utils.data.DataLoader(torch.ones(3, 2)):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
optimizer = adam()
train(optimizer)
state = get_optimizer_state_dict(model, optimizer)
resumed = adam()
set_optimizer_state_dict(model, resumed, state)
train(resumed)
"""


def test_resumed_state(tmp_path: Path) -> None:
    """torch steps a new optimizer before it loads the state of a distributed checkpoint."""
    (box,) = run_program(RESUMED, tmp_path)
    assert len(of_kind(box, RecordKind.STEP)) == 6
    assert errors(box) == 0
