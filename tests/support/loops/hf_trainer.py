"""Hugging Face's Trainer: accumulation, clipping, evaluation and checkpoints every few steps.

The forward hook stands in `compute_loss`, the method that users override to compute a loss of their own: a
hook inside of the model would miss what DistributedDataParallel does around it. The optimizer hook stands in
the two callbacks right before and after `optimizer.step()`. The loss is the tensor that the Trainer adds up
for its logs, on this rank; with `logging_steps=1` it holds one step.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from parts import BLOCK, STEPS, VOCABULARY, pause, slow, slow_updates
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from witness import Witness

out = Path(os.environ["LOOP_RESULTS"])
witness = Witness()
set_seed(13)


class Model(GPT2LMHeadModel):
    def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        output = super().forward(input_ids=input_ids, labels=labels, **kwargs)
        output.loss = slow(output.loss)
        return output


class Hooked(Trainer):  # type: ignore[misc]
    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        with witness.phase("forward") if model.training else nullcontext():
            return super().compute_loss(model, *args, **kwargs)


def examples(count: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(VOCABULARY, (count, BLOCK), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": each, "labels": each} for each in tokens]


def collate(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    pause()
    return {key: torch.stack([each[key] for each in batch]) for key in batch[0]}


class Witnessing(TrainerCallback):  # type: ignore[misc]
    """Counts what the trainer reports."""

    def __init__(self) -> None:
        self.update = ExitStack()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.update.enter_context(witness.phase("optimizer"))

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.update.close()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        witness.begin_step()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        witness.loss(trainer._tr_loss)
        witness.end_step()


model = Model(
    GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=BLOCK,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
)
arguments = TrainingArguments(
    output_dir=str(out / "trainer"),
    max_steps=STEPS,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-2,
    max_grad_norm=1.0,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=10,
    save_steps=10,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
slow_updates(optimizer)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
trainer = Hooked(
    model=model,
    args=arguments,
    data_collator=collate,
    train_dataset=examples(4 * 2 * 2 * 9),
    eval_dataset=examples(24),
    optimizers=(optimizer, scheduler),
    callbacks=[Witnessing()],
)
_backward, _evaluate, _save = trainer.accelerator.backward, trainer.evaluate, trainer._save_checkpoint
_get_batch_samples = trainer.get_batch_samples


def backward(loss: torch.Tensor, **kwargs: Any) -> None:
    with witness.phase("backward"):
        _backward(loss, **kwargs)


def get_batch_samples(epoch_iterator: Any, *args: Any) -> Any:
    return _get_batch_samples(witness.batches(epoch_iterator), *args)


def evaluate(*args: Any, **kwargs: Any) -> Any:
    with witness.evaluation():
        return _evaluate(*args, **kwargs)


def save(*args: Any, **kwargs: Any) -> Any:
    with witness.checkpoint():
        return _save(*args, **kwargs)


trainer.accelerator.backward, trainer.evaluate, trainer._save_checkpoint = backward, evaluate, save
trainer.get_batch_samples = get_batch_samples
trainer.train()
witness.finish(model)
torch.distributed.destroy_process_group()
