"""Trainings with the Trainer of Transformers that go another way than most: one process, each case by name.

transformers_cases.py CASE: what the script itself saw goes to standard output as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback, TrainingArguments

SIZE = 16


class Rows(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((3,), index / SIZE), "labels": torch.ones(1)}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        out = self.layer(x)
        return {"loss": ((out - 1) ** 2).mean(), "logits": out}


def arguments(kind: type[TrainingArguments] = TrainingArguments, **options: Any) -> Any:
    return kind(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        logging_strategy="no", **({"max_steps": 3, "per_device_train_batch_size": 4} | options),
    )  # fmt: skip


def out_of_memory() -> Any:
    """A batch size that does not fit, on which `auto_find_batch_size` tries again."""

    class Small(Trainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            if len(inputs["x"]) > 4 and self.state.global_step == 1:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(model, inputs, *rest)

    trainer = Small(
        Model(), arguments(auto_find_batch_size=True, per_device_train_batch_size=8), train_dataset=Rows()
    )
    trainer.train()
    return trainer.state.global_step


def seq2seq() -> Any:
    """A Trainer that overrides `evaluate`, and that evaluates before it trains and after."""
    trainer = Seq2SeqTrainer(
        Model(), arguments(Seq2SeqTrainingArguments), train_dataset=Rows(), eval_dataset=Rows()
    )
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    trainer.predict(Rows())
    return trainer.state.global_step


def own_fetch() -> Any:
    """A Trainer whose `get_batch_samples` asks nobody, and whose `training_step` calls no other one."""

    class Own(Trainer):
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
            return [next(epoch_iterator) for _ in range(num_batches)], None

        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            loss = model(**inputs)["loss"]
            loss.backward()
            return loss.detach()

    trainer = Own(Model(), arguments(), train_dataset=Rows())
    trainer.train()
    return trainer.state.global_step


def failing() -> Any:
    """A training that an exception ends, which the script catches, and another one after it."""

    class Broken(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            raise ValueError("broken")

    with contextlib.suppress(ValueError):
        Trainer(Model(), arguments(), train_dataset=Rows(), callbacks=[Broken()]).train()
    trainer = Trainer(Model(), arguments(max_steps=2), train_dataset=Rows())
    trainer.train()
    return trainer.state.global_step


def inside() -> Any:
    """A Trainer of Lightning that trains inside of a step of this one."""
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch["x"]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Nested(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            lightning.Trainer(
                max_steps=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False,
            ).fit(Module(), torch.utils.data.DataLoader(Rows()))  # fmt: skip

    trainer = Trainer(Model(), arguments(), train_dataset=Rows(), callbacks=[Nested()])
    trainer.train()
    return trainer.state.global_step


def by_hand() -> Any:
    """The callback of a script that `rankwatch run` starts: it is not attached a second time."""
    from rankwatch.integrations.transformers import RankwatchCallback

    trainer = Trainer(Model(), arguments(), train_dataset=Rows(), callbacks=[RankwatchCallback()])
    trainer.train()
    found = [each for each in trainer.callback_handler.callbacks if isinstance(each, RankwatchCallback)]
    return len(found)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
