"""Trainings with Lightning that go another way than most, each case by name.

lightning_cases.py CASE: what the script itself saw goes to standard output as JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import warnings
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.utils.data import DataLoader, IterableDataset

ROWS = 6


class Rows(IterableDataset):  # type: ignore[type-arg]
    """Rows of unknown number, so that Lightning fetches one batch ahead."""

    def __iter__(self) -> Any:
        return iter(torch.full((3,), number / ROWS) for number in range(ROWS))


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch).sum() ** 2

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Raw(Module):
    """Updates by hand on every second batch, by the optimizer itself instead of its wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        self.manual_backward(loss)
        if index % 2:
            optimizer = self.optimizers(use_pl_optimizer=False)
            optimizer.step()
            optimizer.zero_grad()
        return loss


class Broken(Module):
    def training_step(self, batch: Any, index: int) -> Any:
        if index == 2:
            raise KeyboardInterrupt if self.interrupted else ValueError("broken")
        return super().training_step(batch, index)

    interrupted = False


def trainer(**options: Any) -> Any:
    return lightning.Trainer(
        **({"max_epochs": 1, "devices": 1, "enable_checkpointing": False} | options),
        accelerator="cpu", logger=False, default_root_dir=tempfile.mkdtemp(), enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip


def ahead() -> Any:
    made = trainer()
    made.fit(Module(), DataLoader(Rows(), batch_size=2))
    return made.global_step


def raw() -> Any:
    trainer().fit(Raw(), DataLoader(Rows(), batch_size=1))
    return ROWS // 2


def failing() -> Any:
    """A training that an exception ends, which the script catches, and another one after it."""
    with contextlib.suppress(ValueError):
        trainer().fit(Broken(), DataLoader(Rows(), batch_size=1))
    return ahead()


def interrupted() -> Any:
    Broken.interrupted = True
    with contextlib.suppress(SystemExit):
        trainer().fit(Broken(), DataLoader(Rows(), batch_size=1))


def background() -> Any:
    """Checkpoints that a thread writes."""
    saving = lightning.callbacks.ModelCheckpoint(save_top_k=-1, every_n_train_steps=1)
    made = trainer(enable_checkpointing=True, plugins=[AsyncCheckpointIO()], callbacks=[saving])
    made.fit(Module(), DataLoader(Rows(), batch_size=2))
    return made.global_step


def spawn() -> Any:
    """Ranks that Lightning starts itself, with a callback of the script that it pickles for them."""
    from rankwatch.integrations.lightning import RankwatchCallback

    trainer(strategy="ddp_spawn", devices=2, callbacks=[RankwatchCallback()]).fit(
        Module(), DataLoader(Rows(), batch_size=2)
    )
    return ROWS // 2


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    print(json.dumps(globals()[sys.argv[1]]()))
