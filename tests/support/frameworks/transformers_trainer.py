"""A job with the Trainer of Transformers that calls nothing of rankwatch, unless it is asked to.

transformers_trainer.py FOLDER MODE: it trains, resumes from its first checkpoint, and evaluates between
the two. MODE is `plain`, or `hand`: with the callback. Each rank writes into FOLDER what the Trainer
itself had (losses, waits, weights).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS, ACCUMULATION, SAVE_STEPS, EVALUATION_STEPS = 5, 2, 2, 3
NAN_STEP = 4
LENGTH = 8


class Texts(Dataset):  # type: ignore[type-arg]
    """Short texts; how many of their tokens count for the loss differs, so that ranks differ."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds
        self.waited = 0.0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        began = time.perf_counter()
        time.sleep(self.seconds)
        ids = (torch.arange(LENGTH) * (index + 3)) % 61
        labels = ids.clone()
        labels[: index % 4] = -100
        self.waited += time.perf_counter() - began
        return {"input_ids": ids, "labels": labels}


class Observed(Trainer):
    """A subclass that overrides what users override, and keeps what the loop itself sees."""

    losses: list[float]
    open: Any = None

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        if self.state.global_step + 1 == NAN_STEP:
            loss = loss * float("nan")
        self.open = loss if self.open is None else self.open + loss
        return loss


class Log(TrainerCallback):  # type: ignore[misc]
    """Notes the loss of each step."""

    trainer: Observed

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.losses.append(float(self.trainer.open))
        self.trainer.open = None


def trainer(folder: Path, mode: str) -> Observed:
    torch.manual_seed(1)
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATION, save_steps=SAVE_STEPS, eval_strategy="steps",
        eval_steps=EVALUATION_STEPS, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    callbacks: list[Any] = [log := Log()]
    if mode == "hand":
        from rankwatch.integrations.transformers import RankwatchCallback

        callbacks.append(RankwatchCallback())
    made = Observed(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Texts(40, 0.01),
        eval_dataset=Texts(8, 0.0),
        callbacks=callbacks,
    )
    log.trainer = made
    made.losses = []
    return made


def main(folder: Path, mode: str) -> None:
    first = trainer(folder, mode)
    first.train()
    first.evaluate()
    again = trainer(folder, mode)
    again.train(resume_from_checkpoint=str(folder / "out" / f"checkpoint-{SAVE_STEPS}"))
    weights = b"".join(each.detach().numpy().tobytes() for each in again.model.parameters())
    seen = {
        "losses": [first.losses, again.losses],
        "waited": first.train_dataset.waited,
        "weights": hashlib.sha256(weights).hexdigest(),
        "logged": [each["loss"] for each in first.state.log_history if "loss" in each],
    }
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
