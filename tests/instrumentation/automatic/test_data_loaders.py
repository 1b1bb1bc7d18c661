"""Waits for the batches of real data loaders, of every kind."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from rankwatch.automatic.patches import data_loading
from support.training.recorded import Recorded

WAIT, PLAIN = "data_wait", ["forward", "backward", "optimizer"]
ROWS = 8
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


class Rows(IterableDataset[Tensor]):
    """Rows of a number that nobody knows before."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(ROWS, 4))


class Training:
    """Trains a model on each batch of an iterable."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: Tensor) -> None:
        self.model(batch).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def epoch(self, batches: Iterable[Any]) -> None:
        for batch in batches:
            self.step(batch[0] if isinstance(batch, (tuple, list)) else batch)


def rows() -> TensorDataset:
    return TensorDataset(torch.ones(ROWS, 4))


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "no worker": lambda: DataLoader(rows(), batch_size=2),
    "iterable": lambda: DataLoader(Rows(), batch_size=2),
    "fork": lambda: DataLoader(rows(), batch_size=2, num_workers=2, multiprocessing_context="fork"),
    "persistent": lambda: DataLoader(
        Rows(), batch_size=2, num_workers=1, persistent_workers=True, prefetch_factor=4
    ),
    "spawn": lambda: DataLoader(
        rows(), batch_size=2, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("kind", LOADERS)
def test_loader(recorded: Recorded, kind: str) -> None:
    """Each batch of two epochs is a step that begins with one wait."""
    training, loader = Training(), LOADERS[kind]()
    for _ in range(2):
        training.epoch(loader)
    assert recorded.steps() == [[WAIT, *PLAIN]] * (2 * ROWS // 2)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_loader(recorded: Recorded, workers: int) -> None:
    """torchdata's loader, also one that goes on in the middle of an epoch."""
    pytest.importorskip("torchdata.stateful_dataloader")
    from torchdata.stateful_dataloader import StatefulDataLoader

    data_loading.targets()[STATEFUL](importlib.import_module(STATEFUL))
    training = Training()
    first = StatefulDataLoader(rows(), batch_size=2, num_workers=workers)
    for number, (batch,) in enumerate(first):
        training.step(batch)
        if number == 1:
            break
    again = StatefulDataLoader(rows(), batch_size=2, num_workers=workers)
    again.load_state_dict(first.state_dict())
    training.epoch(again)
    assert recorded.steps() == [[WAIT, *PLAIN]] * (ROWS // 2)


def test_loader_inside_a_loader(recorded: Recorded) -> None:
    """A loader that another one reads while it makes a batch adds no wait of its own."""
    inner = DataLoader(rows(), batch_size=4)

    def collate(samples: list[Any]) -> Tensor:
        return torch.stack([each for (each,) in samples]) + sum(len(batch) for (batch,) in inner)

    Training().epoch(DataLoader(rows(), batch_size=2, collate_fn=collate))
    assert recorded.steps() == [[WAIT, *PLAIN]] * (ROWS // 2)


def test_two_loaders(recorded: Recorded) -> None:
    """A loop over two loaders at once waits twice in each step; one after the other, once."""
    training = Training()
    for (batch,), _ in zip(DataLoader(rows(), batch_size=2), DataLoader(rows(), batch_size=2), strict=True):
        training.step(batch)
    for loader in (DataLoader(rows(), batch_size=2), DataLoader(Rows(), batch_size=2)):
        training.epoch(loader)
    assert recorded.steps() == [[WAIT, WAIT, *PLAIN]] * (ROWS // 2) + [[WAIT, *PLAIN]] * ROWS


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child(recorded: Recorded) -> None:
    """A child of the training process that trains on its own writes nothing into the box of its parent."""
    training = Training()
    training.epoch(DataLoader(rows(), batch_size=2))
    child = multiprocessing.get_context("fork").Process(
        target=training.epoch, args=[DataLoader(rows(), batch_size=2)]
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    training.epoch(DataLoader(rows(), batch_size=2))
    assert recorded.steps() == [[WAIT, *PLAIN]] * ROWS
