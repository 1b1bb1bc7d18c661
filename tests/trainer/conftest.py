"""Fixtures of the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from rankwatch_trainer.cli import main


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Runs the trainer in this process as rank 0 of 1 and returns its exit status."""
    monkeypatch.setenv("RANKWATCH_DISABLE", "1")
    yield lambda *arguments: main(list(map(str, arguments)), environment={})
    if dist.is_initialized():  # a run that failed leaves its group to the end of the process
        dist.destroy_process_group()
