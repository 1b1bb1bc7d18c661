"""The training text, and each rank's share of it as an endless sequence of batches."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor

from rankwatch_trainer.errors import UsageError

_HELD_OUT_FRACTION = 0.1
_INSTALLED_LATER = frozenset({"site-packages", "dist-packages"})
"""Folders under the standard library that hold other packages, and differ from machine to machine."""


class Corpus(NamedTuple):
    """Byte values of the text, one dimension, uint8."""

    training: Tensor
    held_out: Tensor
    """The last tenth, never trained on."""


def read_corpus(root: Path, limit_bytes: int) -> Corpus:
    """Return the first `limit_bytes` of all *.py files under root, by folder and name.

    The default root is Python's standard library, which every machine with Python has.
    Raises UsageError if there is no such file.
    """
    content = bytearray()
    for path in _source_files(root):
        content += path.read_bytes()
        if len(content) >= limit_bytes:
            break
    if not content:
        raise UsageError(f"could not read the training text: no *.py file under {root}")
    text = torch.frombuffer(content[:limit_bytes], dtype=torch.uint8)
    held_out = int(len(text) * _HELD_OUT_FRACTION)
    return Corpus(training=text[: len(text) - held_out], held_out=text[len(text) - held_out :])


def standard_library() -> Path:
    """Return the folder of the source files of the running Python."""
    return Path(sysconfig.get_path("stdlib"))


def _source_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _INSTALLED_LATER)  # os.walk goes on in this order
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


class Position(TypedDict):
    """Where the next batch begins; the same on every rank."""

    epoch: int
    window: int
    """Sequences already taken from this rank's share in this epoch."""


class ShardedBatches:
    """Yields one step's text at a time: (accumulation, batch size, context + 1) byte values, int64.

    The text is cut into windows of context + 1 bytes. Each epoch shuffles them by (seed, epoch), and
    rank r of w takes the shuffled windows r, r + w, r + 2w, ...: ranks never share a window, and what
    a step sees depends on nothing but seed, rank, world size and position.
    """

    def __init__(
        self, text: Tensor, *, shape: tuple[int, int], context: int, rank: int, world_size: int, seed: int
    ) -> None:
        self._share = len(text) // (context + 1) // world_size
        self._per_step = shape[0] * shape[1]
        if self._share < self._per_step:
            raise UsageError(
                f"the text of {len(text)} bytes holds {self._share} sequences of {context + 1} bytes "
                f"for each of {world_size} ranks, expected at least {self._per_step} for one step; "
                "--corpus-bytes gives more text"
            )
        self._windows = text.unfold(0, context + 1, context + 1)
        self._shape = shape
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self.position: Position = {"epoch": 0, "window": 0}
        """May be assigned, to go on from there."""
        self._order_epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def __iter__(self) -> ShardedBatches:
        return self

    def __next__(self) -> Tensor:
        epoch, window = self.position["epoch"], self.position["window"]
        if window + self._per_step > self._share:
            epoch, window = epoch + 1, 0
        taken = self._order_of(epoch)[window : window + self._per_step]
        self.position = {"epoch": epoch, "window": window + self._per_step}
        return self._windows[taken].long().view(*self._shape, -1)

    def _order_of(self, epoch: int) -> Tensor:
        if epoch != self._order_epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            shuffled = torch.randperm(len(self._windows), generator=generator)
            self._order = shuffled[self._rank :: self._world_size][: self._share]
            self._order_epoch = epoch
        return self._order
