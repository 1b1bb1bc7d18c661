"""Trainings with the Trainer of Transformers that go another way than most: one process, each case by name.

transformers_cases.py FOLDER CASE...: see `answer_cases`.
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback, TrainingArguments

from support.frameworks.cases import answer_cases

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
    usual = {
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    return kind(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], disable_tqdm=True, **(usual | options)
    )


def train(kind: type[Trainer] = Trainer, *, callbacks: Any = None, rows: Any = None, **options: Any) -> Any:
    """Train, and return the Trainer. rows: those of an evaluation."""
    made = kind(Model(), arguments(**options), train_dataset=Rows(), eval_dataset=rows, callbacks=callbacks)
    made.train()
    return made


def out_of_memory() -> Any:
    """A batch size that does not fit, on which `auto_find_batch_size` tries again."""

    class Small(Trainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            if len(inputs["x"]) > 4 and self.state.global_step == 1:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(model, inputs, *rest)

    return train(Small, auto_find_batch_size=True, per_device_train_batch_size=8).state.global_step


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

    return train(Own).state.global_step


def failing() -> Any:
    """A training that an exception ends, which the script catches, and another one after it."""

    class Broken(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            raise ValueError("broken")

    with contextlib.suppress(ValueError):
        train(callbacks=[Broken()])
    return train(max_steps=2).state.global_step


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

    return train(callbacks=[Nested()]).state.global_step


def by_hand() -> Any:
    """The callback of a script that `rankwatch run` starts: it is not attached a second time."""
    from rankwatch.integrations.transformers import RankwatchCallback

    trainer = train(callbacks=[RankwatchCallback()])
    found = [each for each in trainer.callback_handler.callbacks if isinstance(each, RankwatchCallback)]
    return len(found)


def own_train() -> Any:
    """A Trainer whose `train` asks nobody."""

    class Own(Trainer):
        def train(self, *args: Any, **kwargs: Any) -> Any:
            self.create_optimizer()
            for step, inputs in enumerate(self.get_train_dataloader()):
                with self.compute_loss_context_manager():
                    self.compute_loss(self.model, inputs).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.state.global_step = step + 1

    return train(Own).state.global_step


def own_loop() -> Any:
    """A Trainer whose inner loop calls `training_step`, and only those events that it needs itself."""

    class Own(Trainer):
        def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
            self.create_optimizer()
            self.current_gradient_accumulation_steps = 1
            self.callback_handler.on_train_begin(self.args, self.state, self.control)
            for step, inputs in enumerate(self.get_train_dataloader()):
                self.training_step(self.model, inputs)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.state.global_step = step + 1
                self.callback_handler.on_step_end(self.args, self.state, self.control)

    return train(Own).state.global_step


def own_run() -> Any:
    """A script that starts its run itself, and adds the callback."""
    import rankwatch
    from rankwatch.integrations.transformers import RankwatchCallback

    with rankwatch.start(run="job") as run:
        for _ in range(2):
            trainer = train(callbacks=[RankwatchCallback()])
        run.scalar("mine", 1.0)
    return trainer.state.global_step


def own_run_first() -> Any:
    """The same without the callback: explicit calls win."""
    import rankwatch

    with rankwatch.start(run="job") as run:
        train()
        with run.step():
            pass
    return 1


def search() -> Any:
    """Several trainings by one Trainer, as a search for hyperparameters has."""
    trainer = Trainer(
        args=arguments(max_steps=2), train_dataset=Rows(), eval_dataset=Rows(), model_init=Model
    )
    for trial in range(3):
        trainer.train(trial={"learning_rate": 1e-3 * (1 + trial)})
        trainer.evaluate()
    return trainer.state.global_step


def resumed() -> Any:
    """A training that goes on from its checkpoint, twice the steps."""
    where = arguments(save_strategy="steps", save_steps=2, max_steps=2)
    Trainer(Model(), where, train_dataset=Rows()).train()
    where.max_steps = 4
    trainer = Trainer(Model(), where, train_dataset=Rows())
    trainer.train(resume_from_checkpoint=True)
    return trainer.state.global_step


def incomplete() -> Any:
    """Two epochs of four batches, three to a step: the last step of an epoch has one."""
    logged = {"logging_strategy": "steps", "logging_steps": 1000}
    trainer = train(gradient_accumulation_steps=3, num_train_epochs=2, max_steps=-1, bf16=True, **logged)
    return trainer.state.global_step


def compiled() -> Any:
    return train(torch_compile=True, torch_compile_backend="aot_eager").state.global_step


def workers() -> Any:
    """Batches of two workers, with an evaluation and a prediction of their own."""
    trainer = train(rows=Rows(), dataloader_num_workers=2, eval_strategy="steps", eval_steps=2)
    trainer.predict(Rows())
    return trainer.state.global_step


if __name__ == "__main__":
    answer_cases(globals())
