"""Lightning with manual optimization on all ranks of torchrun: a module that trains two networks itself.

lightning_manual.py FOLDER MODE: writes the number of its iterations to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader

ITERATIONS = 4


class Adversarial(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        self.iterations = 0

    def training_step(self, batch: Any, index: int) -> None:
        for network, optimizer in zip((self.critic, self.generator), self.optimizers(), strict=True):
            self.toggle_optimizer(optimizer)
            loss = network(batch).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        self.iterations += 1

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (self.critic, self.generator)]


def main(folder: Path) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    module = Adversarial()
    ranks = int(os.environ["WORLD_SIZE"])
    lightning.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp_find_unused_parameters_true", max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, DataLoader(torch.ones(2 * ranks * ITERATIONS, 3), batch_size=2))  # fmt: skip
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(module.iterations))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
