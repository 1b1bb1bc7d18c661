"""Trainings with Lightning that go another way than most, each case by name.

lightning_cases.py FOLDER CASE...: see `answer_cases`.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.utils.data import DataLoader, IterableDataset

from support.frameworks.cases import answer_cases

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


def fit(module: Any, batch_size: int = 2, **options: Any) -> Any:
    """Train, and return the Trainer."""
    made = trainer(**options)
    made.fit(module, DataLoader(Rows(), batch_size=batch_size))
    return made


def ahead() -> Any:
    return fit(Module()).global_step


def raw() -> Any:
    fit(Raw(), 1)
    return ROWS // 2


def failing() -> Any:
    """A training that an exception ends, which the script catches, and another one after it."""
    with contextlib.suppress(ValueError):
        fit(Broken(), 1)
    return ahead()


def interrupted() -> Any:
    Broken.interrupted = True
    with contextlib.suppress(SystemExit):
        fit(Broken(), 1)


def background() -> Any:
    """Checkpoints that a thread writes."""
    saving = lightning.callbacks.ModelCheckpoint(save_top_k=-1, every_n_train_steps=1)
    made = fit(Module(), enable_checkpointing=True, plugins=[AsyncCheckpointIO()], callbacks=[saving])
    return made.global_step


def spawn() -> Any:
    """Ranks that Lightning starts itself, with a callback of the script that it pickles for them."""
    from rankwatch.integrations.lightning import RankwatchCallback

    fit(Module(), strategy="ddp_spawn", devices=2, callbacks=[RankwatchCallback()])
    return ROWS // 2


def twice() -> Any:
    """`fit` of one Trainer goes on where the first one ended."""
    made = trainer(max_epochs=1)
    module, loader = Module(), DataLoader(Rows(), batch_size=2)
    made.fit(module, loader)
    made.fit_loop.max_epochs = 2
    made.fit(module, loader)
    return made.global_step


def resumed() -> Any:
    """`fit` from a checkpoint, by another Trainer."""
    first = fit(Module(), enable_checkpointing=True)
    again = trainer(max_epochs=2)
    again.fit(Module(), DataLoader(Rows(), batch_size=2), ckpt_path=first.checkpoint_callback.best_model_path)
    return again.global_step


class Data(lightning.LightningDataModule):  # type: ignore[misc]
    def train_dataloader(self) -> Any:
        return DataLoader(Rows(), batch_size=1)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Evaluated(Module):
    def validation_step(self, batch: Any, index: int) -> None:
        self.layer(batch)

    test_step = predict_step = validation_step


def evaluated() -> Any:
    """A data module, whose batches are tested before the training, and validated, tested and predicted after
    it."""
    made, module, data = trainer(num_sanity_val_steps=0), Evaluated(), Data()
    made.test(module, data)
    made.fit(module, data)
    made.validate(module, data)
    made.test(module, data)
    made.predict(module, data)
    return made.global_step


def scheduled() -> Any:
    """Steps of one batch in the first epoch, and of four in the second, whose last one has two."""
    schedule = lightning.callbacks.GradientAccumulationScheduler({0: 1, 1: 4})
    made = trainer(max_epochs=2, callbacks=[schedule])
    made.fit(Module(), DataLoader([torch.full((3,), 0.5)] * ROWS, batch_size=1))
    return made.global_step


def barebones() -> Any:
    """Lightning without all that may cost time."""
    made = lightning.Trainer(barebones=True, max_epochs=1, accelerator="cpu", devices=1)
    made.fit(Module(), DataLoader(Rows(), batch_size=2))
    return made.global_step


class Adversaries(Module):
    """Two optimizers by hand, the second one on every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        for optimizer in self.optimizers()[: 1 + index % 2]:
            optimizer.zero_grad()
            self.manual_backward((self.layer(batch) + self.other(batch)).sum() ** 2)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (self.layer, self.other)]


def adversaries() -> Any:
    fit(Adversaries(), 1)
    return ROWS


def uncaught() -> Any:
    fit(Broken(), 1)


def own_run() -> Any:
    """A script that starts its run itself, and adds the callback."""
    import rankwatch
    from rankwatch.integrations.lightning import RankwatchCallback

    with rankwatch.start(run="job") as run:
        made = fit(Module(), callbacks=[RankwatchCallback()])
        run.scalar("mine", 1.0)
    return made.global_step


def found_rate() -> Any:
    """The search for a learning rate trains, and then puts everything back."""
    from lightning.pytorch.tuner import Tuner

    class Searched(Module):
        lr = 1e-3

    made, module = trainer(), Searched()
    loader = DataLoader([torch.full((3,), 0.5)] * ROWS, batch_size=1)
    Tuner(made).lr_find(module, loader, num_training=5)
    made.fit(module, loader)
    return made.global_step


def fabric() -> Any:
    """A loop of one's own with Fabric, which leads nothing."""
    from lightning.fabric import Fabric

    made = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(3, 1)
    model, optimizer = made.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = made.setup_dataloaders(DataLoader(Rows(), batch_size=1))
    losses = []
    for index, batch in enumerate(loader):
        accumulates = index % 2 == 0
        with made.no_backward_sync(model, enabled=accumulates):
            loss = model(batch).sum() ** 2
            made.backward(loss / 2)
        losses.append(loss.item() / 2)
        if not accumulates:
            made.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    path = tempfile.mkdtemp() + "/state.ckpt"
    made.save(path, {"model": model, "optimizer": optimizer})
    made.load(path, {"model": model, "optimizer": optimizer})
    return losses


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    answer_cases(globals())
