"""A job with Lightning that calls nothing of rankwatch, unless it is asked to.

lightning_trainer.py FOLDER MODE NAMESPACE: it trains with accumulation, resumes, and trains two
optimizers by hand. MODE is `plain`, or `hand`: with the callback. Each rank writes into FOLDER what the
loop itself had (losses, waits, weights).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

BATCHES, ACCUMULATION, EPOCHS, SAVE_STEPS = 5, 2, 2, 2
STEPS = EPOCHS * (BATCHES // ACCUMULATION + 1)
MANUAL_BATCHES = 4

lightning = importlib.import_module(sys.argv[3] if len(sys.argv) > 3 else "lightning.pytorch")


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, size: int, seconds: float = 0.0) -> None:
        self.size, self.seconds = size, seconds
        self.waited = 0.0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        began = time.perf_counter()
        time.sleep(self.seconds)
        row = torch.linspace(0.0, 1.0, 4) * (1 + index)
        self.waited += time.perf_counter() - began
        return row


class Automatic(lightning.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> Any:
        return (self.layer(batch) ** 2).mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        self.losses.append(float(outputs["loss"]))

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", self.layer(batch).sum(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001, momentum=0.9)


class Manual(lightning.LightningModule):  # type: ignore[name-defined, misc]
    """Two optimizers, as in a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward((self.second(self.first(batch)) ** 2).mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(each.parameters(), lr=1e-4) for each in (self.first, self.second)]


def trainer(folder: Path, mode: str, **options: Any) -> Any:
    callbacks: list[Any] = options.pop("callbacks", [])
    if mode == "hand":
        from rankwatch.integrations.lightning import RankwatchCallback

        callbacks.append(RankwatchCallback())
    return lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", logger=False,
        default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        use_distributed_sampler=False, **options,
    )  # fmt: skip


def fit(folder: Path, mode: str, checkpoint: Path | None) -> tuple[Automatic, Rows]:
    torch.manual_seed(1)
    module, rows = Automatic(), Rows(2 * BATCHES, 0.01)
    saving = lightning.callbacks.ModelCheckpoint(
        folder, "{step}", save_top_k=-1, every_n_train_steps=SAVE_STEPS
    )
    made = trainer(
        folder, mode, callbacks=[saving], max_epochs=EPOCHS, accumulate_grad_batches=ACCUMULATION,
        num_sanity_val_steps=1, gradient_clip_val=1.0,
    )  # fmt: skip
    made.fit(module, DataLoader(rows, batch_size=2), DataLoader(Rows(4), batch_size=2), ckpt_path=checkpoint)
    return module, rows


def main(folder: Path, mode: str) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    first, rows = fit(folder, mode, None)
    again, _ = fit(folder, mode, folder / f"step={2 * SAVE_STEPS}.ckpt")
    manual = Manual()
    torch.nn.init.ones_(manual.first.weight)
    trainer(folder, mode, max_epochs=1, enable_checkpointing=False).fit(
        manual, DataLoader(Rows(2 * MANUAL_BATCHES), batch_size=2)
    )
    weights = b"".join(each.detach().numpy().tobytes() for each in again.parameters())
    seen = {
        "losses": [first.losses, again.losses],
        "waited": rows.waited,
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
