"""Checkpoints for tests, and ways to damage them."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp


def state(elements: int = 300) -> dict[str, Any]:
    """A small state dict with nested names, several types, a parameter and a tied weight."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(elements, 4, generator=generator)
    return {
        "model": {
            "embed.weight": weight,
            "head.weight": weight,
            "norm.bias": torch.ones(7, dtype=torch.bfloat16),
            "layer.weight": torch.nn.Parameter(torch.randn(5, elements, generator=generator)),
        },
        "optimizer": {"state": {0: {"exp_avg": torch.randn(elements, generator=generator)}}},
        "step": 7,
    }


def save_distributed(folder: Path, *, elements: int = 300) -> Path:
    """A folder of torch.distributed.checkpoint by one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state(elements), checkpoint_id=folder, no_dist=True)
    return folder


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << bit % 8)]))


def truncate(path: Path, size: int) -> None:
    """Cut a file off."""
    with open(path, "r+b") as file:
        file.truncate(size)


def random_bits(path: Path, count: int, seed: int) -> list[int]:
    """Places of bits in a file, without repetition."""
    return random.Random(seed).sample(range(path.stat().st_size * 8), count)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """A safetensors file of (type, shape, content) by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(each[2] for each in tensors.values()))
