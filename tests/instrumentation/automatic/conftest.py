"""A process in which zero-code recording follows torch, for one test."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankwatch
from rankwatch.automatic import installing, loop, patching
from support.training.recorded import Recorded

PATCHED = (
    "torch.utils.data.dataloader",
    "torch.compiler",
    "torch._tensor",
    "torch.autograd",
    "torch.optim.optimizer",
    "torch.distributed.checkpoint.state_dict",
    "torch.amp.grad_scaler",
    "torch.distributed.fsdp.sharded_grad_scaler",
)


@pytest.fixture
def recorded(run: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Records what the test does with torch. Afterwards torch is as it was before."""
    pytest.importorskip("torch")
    import torch
    import torch.optim.optimizer as optimizers

    from rankwatch.automatic.patches import modules

    monkeypatch.setattr(modules, "_root_modules", None)
    recording = loop.Loop(lambda: run)
    monkeypatch.setattr(loop, "current", lambda: recording)
    hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    before = [each.copy() for each in hooks]
    call = torch.nn.Module.__call__
    patches = installing.patches()
    for name in PATCHED:
        patches[name](importlib.import_module(name))
    yield Recorded(run, tmp_path)
    loop.current().stop()
    for each in list(patching._replaced.values()):
        each.undo()
    torch.nn.Module.__call__ = call
    for now, then in zip(hooks, before, strict=True):
        now.clear()
        now.update(then)
