"""The text: source files of Python's standard library, which every machine with Python has."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


def standard_library() -> Path:
    """Folder of the source files of the running Python."""
    return Path(sysconfig.get_path("stdlib"))


def read_corpus(root: Path, limit_bytes: int) -> Corpus:
    """The first `limit_bytes` of all *.py files under root, folder by folder, in the order
    of their names.

    Raises UsageError where there are none.
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


def _source_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _INSTALLED_LATER)  # os.walk goes on in this order
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))
