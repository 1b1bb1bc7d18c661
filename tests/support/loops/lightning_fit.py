"""Lightning's `fit`: accumulation, clipping, validation and checkpoints every few steps.

The hooks stand in the methods of a LightningModule that users write: forward is the body of `training_step`
with its `self.log`, backward is `backward`, and the optimizer is `optimizer_step`. Lightning runs the first
two inside of the third, so the time of an update is what is left there. The wait is that for the iterator of
the data loader.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from parts import STEPS, Classifier, Vectors, slow_collate, slow_updates
from torch.utils.data import DataLoader
from witness import Witness

warnings.filterwarnings("ignore")
out = Path(os.environ["LOOP_RESULTS"])
accumulate = 2
witness = Witness()
pl.seed_everything(17, verbose=False)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Classifier()
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, classes = batch
        with witness.phase("forward"):
            loss = torch.nn.functional.cross_entropy(self.model(inputs), classes)
            self.losses.append(loss.detach())
            self.log("train_loss", loss)
            return loss

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with witness.phase("backward"):
            super().backward(loss, *args, **kwargs)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        with witness.phase("optimizer"):
            super().optimizer_step(*args, **kwargs)

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, classes = batch
        self.log("val_loss", torch.nn.functional.cross_entropy(self.model(inputs), classes), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        slow_updates(optimizer)
        return optimizer


class Witnessing(pl.Callback):
    """Counts what the trainer reports."""

    def __init__(self) -> None:
        self.begun = False

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if not self.begun:
            witness.begin_step()
        self.begun = True

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        assert isinstance(module, Module)
        if len(module.losses) == accumulate:
            witness.loss(torch.stack(module.losses).mean())
            module.losses.clear()
            witness.end_step()
            self.begun = False
            if trainer.is_global_zero:
                print(f"step {trainer.global_step} loss {witness.losses[-1]:.6f}", flush=True)


class TimedLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return witness.batches(super().__iter__())


module = Module()
trainer = pl.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["WORLD_SIZE"]),
    max_steps=STEPS,
    accumulate_grad_batches=accumulate,
    gradient_clip_val=1.0,
    val_check_interval=20,
    check_val_every_n_epoch=None,
    callbacks=[
        Witnessing(),
        ModelCheckpoint(dirpath=out / "checkpoints", every_n_train_steps=10, save_top_k=-1),
    ],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=out,
)
_save, _validate = trainer.save_checkpoint, trainer.fit_loop.epoch_loop.val_loop.run


def save(*args: Any, **kwargs: Any) -> None:
    with witness.checkpoint():
        _save(*args, **kwargs)


def validate() -> Any:
    with witness.evaluation():
        return _validate()


trainer.save_checkpoint = save  # type: ignore[method-assign]
trainer.fit_loop.epoch_loop.val_loop.run = validate  # type: ignore[method-assign]
trainer.fit(
    module,
    TimedLoader(Vectors(16 * 64), batch_size=16, shuffle=True, collate_fn=slow_collate),
    DataLoader(Vectors(96), batch_size=16, collate_fn=slow_collate),
)
witness.finish(module)
