"""Loops with Accelerate that go another way than most, on two ranks, each case by name.

accelerate_cases.py FOLDER CASE...: see `answer_cases`. A case returns what the loop of rank 0 saw.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.local_sgd import LocalSGD
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, Dataset, IterableDataset

from support.frameworks.cases import answer_cases

RANKS, BATCHES, BATCH = 2, 4, 2


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, size: int = RANKS * BATCHES * BATCH) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), index / self.size)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (Rows()[index] for index in range(len(Rows())))


def parts(accelerator: Accelerator, data: Any = None) -> Any:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Rows() if data is None else data, batch_size=BATCH)
    return accelerator.prepare(model, optimizer, loader)


def train(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any) -> list[float]:
    losses = []
    for batch in loader:
        loss = (model(batch) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def two_models() -> Any:
    """Two models with their optimizers, accumulated together."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = parts(accelerator)
    other, second = parts(accelerator)[:2]
    losses = []
    for batch in loader:
        with accelerator.accumulate(model, other):
            loss = (model(batch) ** 2).mean() + (other(batch) ** 2).mean()
            accelerator.backward(loss)
            losses.append(loss.item() / 2)
            for each in (optimizer, second):
                each.step()
                each.zero_grad()
    return losses


def resumed() -> Any:
    """Half an epoch, a checkpoint, and the other half from it."""
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = parts(accelerator)
    path = os.environ["RANKWATCH_DIR"] + "/../state"
    losses = []
    for number, batch in enumerate(loader, start=1):
        losses += train(accelerator, model, optimizer, [batch])
        if number == BATCHES // 2:
            break
    accelerator.save_state(path)
    accelerator.wait_for_everyone()
    accelerator.load_state(path)
    return losses + train(accelerator, model, optimizer, skip_first_batches(loader, BATCHES // 2))


def uneven() -> Any:
    """The first rank has one batch more than the second one. On CPUs `join_uneven_inputs` does nothing, so
    this is what it does on GPUs."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    model, optimizer, loader = parts(accelerator, Rows((RANKS * BATCHES + 1) * BATCH))
    with Join([model]):
        return train(accelerator, model, optimizer, loader)


def dispatched() -> Any:
    """Rank 0 reads the batches of all ranks."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    return train(accelerator, *parts(accelerator, Stream()))


def local() -> Any:
    """Each rank trains alone; they average their weights on every second step."""
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = parts(accelerator)
    losses = []
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2) as averaging:
        for batch in loader:
            losses += train(accelerator, model, optimizer, [batch])
            averaging.step()
    return losses


def own_run() -> Any:
    """A script that makes the explicit calls, and adds the tracker."""
    import rankwatch
    from rankwatch.integrations.accelerate import RankwatchTracker

    with rankwatch.start() as run:
        accelerator = Accelerator(cpu=True, log_with=[RankwatchTracker()])
        accelerator.init_trackers("test", {})
        model, optimizer, loader = parts(accelerator)
        losses = []
        for batch in run.batches(loader):
            with run.step():
                losses += train(accelerator, model, optimizer, [batch])
                accelerator.log({"my_loss": losses[-1]})
        accelerator.end_training()
    return losses


if __name__ == "__main__":
    answer_cases(globals(), ranks=RANKS)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
