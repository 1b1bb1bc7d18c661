"""Fingerprints of parameters: microseconds per million parameters, beside SHA-1 of a copy on the CPU.

Megatron compares replicas by SHA-1 of each parameter, copied to the CPU. Both read the same tensors in turn.
The share is that of a fingerprint every 100 steps of forward, backward and AdamW on the same device.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable

import torch

from rankwatch.fingerprints.digest import Digest

from .result import Result, Row, limited

_EVERY = 100
_MOST_SHARE = 0.001
_BATCH = 256
_WIDTH = 1024


def measure(*, quick: bool) -> Result:
    """On the GPU if there is one, else on one thread of the CPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    layers = (4 if quick else 16) * (16 if device == "cuda" else 1)
    model = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(layers))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tensors = list(model.parameters())
    millions = sum(each.numel() for each in tensors) / 1e6
    digest = Digest(tensors)

    def step() -> None:
        model(torch.ones(_BATCH, _WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    parts: dict[str, Callable[[], object]] = {
        "fingerprint": lambda: digest.compute(tensors),
        "SHA-1 of a copy on the CPU": lambda: [_sha1(each) for each in tensors],
        "step": step,
    }
    samples: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(4 if quick else 11):
        for name, part in parts.items():
            samples[name].append(_seconds(part, device))
    medians = {name: statistics.median(each[1:]) for name, each in samples.items()}  # the first one warms up
    rows = [
        Row(f"{name}, for a million parameters", f"{medians[name] / millions * 1e6:,.0f} us", _spread(each))
        for name, each in samples.items()
    ]
    share = medians["fingerprint"] / medians["step"] / _EVERY
    rows.append(limited(f"share of {_EVERY} steps", share, _MOST_SHARE, lambda value: f"{value:.3%}"))
    return Result(
        title="Fingerprints of parameters",
        rows=tuple(rows),
        notes=(f"{millions:.1f} million parameters in float32 on {device}, batches of {_BATCH}.",),
        samples={"seconds": samples},
    )


def _seconds(part: Callable[[], object], device: str) -> float:
    began = time.perf_counter()
    part()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _sha1(tensor: torch.Tensor) -> bytes:
    return hashlib.sha1(tensor.detach().cpu().numpy().tobytes()).digest()


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds[1:]):.4f} to {max(seconds[1:]):.4f} s"
