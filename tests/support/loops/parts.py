"""Small models and data sets whose phases last a chosen time."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn

STEPS = int(os.environ.get("LOOP_STEPS", "24"))
PAUSE_SECONDS = float(os.environ.get("LOOP_PAUSE_MS", "8")) / 1e3
"""Length of each forward, of each backward, of each fetch and of each update, beside their own work."""
VOCABULARY = 64
BLOCK = 16
WIDTH = 24


def pause() -> None:
    """Take the time that a large model or a remote file would take."""
    if PAUSE_SECONDS:
        time.sleep(PAUSE_SECONDS)


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        pause()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        pause()
        return gradients[0]


def slow(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, after a pause, and with a pause in its backward."""
    return _Slow.apply(tensor)  # type: ignore[no-any-return,no-untyped-call]


class TokenModel(nn.Module):
    """Predicts the next token. Returns logits and loss, as nanoGPT's model does."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.inner(self.embedding(tokens)))
        loss = nn.functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
        return logits, slow(loss)


class Classifier(nn.Module):
    """Two layers on vectors."""

    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return slow(self.layers(inputs))


class Vectors(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Vectors with a class each."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.vectors = torch.randn(count, WIDTH, generator=generator)
        self.classes = torch.randint(10, (count,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.vectors[index], self.classes[index]


def slow_collate(examples: list[Any]) -> Any:
    """The default batch, after a pause."""
    pause()
    return torch.utils.data.default_collate(examples)


def slow_updates(optimizer: torch.optim.Optimizer) -> None:
    """Let each update of this optimizer take a pause more."""
    optimizer.register_step_post_hook(lambda *_: pause())
