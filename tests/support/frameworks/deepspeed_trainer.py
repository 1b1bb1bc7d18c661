"""The Trainer of Transformers on DeepSpeed, in a script that calls nothing of rankwatch.

deepspeed_trainer.py FOLDER MODE: each rank writes into FOLDER the losses and norms that the Trainer has.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from support.frameworks.transformers_trainer import Texts

STEPS, ACCUMULATION, SAVE_STEPS = 4, 2, 2
AUTO = "auto"
CONFIG = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "optimizer": {"type": "AdamW", "params": {"lr": AUTO, "torch_adam": True}},
}


class Observed(Trainer):
    """It keeps what the loop itself sees."""

    losses: list[torch.Tensor]

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.losses.append(super().training_step(*args, **kwargs))
        return self.losses[-1]


def main(folder: Path) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first, for minutes
    arguments = TrainingArguments(
        str(folder / "saved"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATION,
        save_steps=SAVE_STEPS,
        logging_steps=1,
        deepspeed=CONFIG,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    trainer = Observed(model=model, args=arguments, train_dataset=Texts(64, 0.0))
    trainer.losses = []
    trainer.train()
    pairs = zip(trainer.losses[::ACCUMULATION], trainer.losses[1::ACCUMULATION], strict=True)
    norms = [each["grad_norm"] for each in trainer.state.log_history if "grad_norm" in each]
    seen = {"losses": [float(first + second) for first, second in pairs], "norms": norms}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
