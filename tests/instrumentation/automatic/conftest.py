"""A process in which zero-code recording follows torch, for one test."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankwatch
from rankwatch.automatic import forward, loop, patching
from support.training.recorded import Recorded


@pytest.fixture
def recorded(run: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Records what the test does with torch. Afterwards torch is as it was before."""
    pytest.importorskip("torch")
    import torch
    import torch.optim.optimizer as optimizers

    from rankwatch.automatic.seams import autograd, data_loading, gradient_scaling, modules
    from rankwatch.automatic.seams import optimizers as optimizer_hooks

    monkeypatch.setattr(forward, "look", forward.look)
    recording = loop.Loop(lambda: run)
    monkeypatch.setattr(loop, "current", lambda: recording)
    hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    before = [each.copy() for each in hooks]
    call = torch.nn.Module.__call__
    for seam in (data_loading, modules, autograd, optimizer_hooks, gradient_scaling):
        for name, patch in seam.targets().items():
            if name.startswith("torch."):
                patch(importlib.import_module(name))
    yield Recorded(run, tmp_path)
    loop.current().stop()
    patching.undo_all()
    torch.nn.Module.__call__ = call
    for now, then in zip(hooks, before, strict=True):
        now.clear()
        now.update(then)
