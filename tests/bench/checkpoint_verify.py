"""Verification of checkpoints: bytes per second on one core from memory, and 1,000 random damages found.

One file of 512 MiB in /dev/shm is read by `rankwatch checkpoint verify`, by `zipfile.testzip` and by
`sha256sum`, in turn. Then a bit is flipped, or the end cut off, at random places of a `.pt` file, of a folder
of torch.distributed.checkpoint and of a checkpoint with a manifest: found, and named by file and tensor?
"""

from __future__ import annotations

import random
import statistics
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from rankwatch_checkpoints import ManifestWriter, Outcome, merge, verify
from support.checkpoints import flip, save_distributed, state, truncate

from .result import BenchError, Result, Row

_LEAST_RATE = 1e9
_SEED = 13
_TRUNCATED_SHARE = 0.2


class _Found(NamedTuple):
    flipped: int
    truncated: int
    missed: tuple[str, ...]
    without_tensor: int
    """Damages whose problems name a file and no tensor: headers and ends of files, files without tensors."""


def measure(*, quick: bool) -> Result:
    """At full size, or at a small part of it in the short form."""
    with tempfile.TemporaryDirectory(prefix="rankwatch-verify-", dir="/dev/shm") as name:
        directory = Path(name)
        rates = _rates(directory, megabytes=32 if quick else 512, times=3 if quick else 5)
        damages = {kind: _damage(directory, kind, 30 if quick else 1000) for kind in _KINDS}
    rows = [_rate_row(what, samples, what == _OURS) for what, samples in rates.items()]
    for kind, found in damages.items():
        count = found.flipped + found.truncated
        measured = f"{count - len(found.missed)} of {count} found"
        named = f"{count - found.without_tensor} with a tensor"
        rows.append(Row(f"{kind}: damages", measured, named, "all", not found.missed))
    return Result(
        title="Verification of checkpoints",
        rows=tuple(rows),
        notes=(
            "Rates are medians, from memory, of one process on one core.",
            "A damage is a flipped bit or a truncation (a fifth of them) at a random byte of all files.",
            "A damage without a tensor lies in headers, directories or files that hold no tensor.",
        ),
        samples={
            "bytes_per_second": rates,
            "missed": {kind: found.missed for kind, found in damages.items()},
        },
    )


_OURS = "rankwatch checkpoint verify, .pt"


def _rates(directory: Path, *, megabytes: int, times: int) -> dict[str, list[float]]:
    path = directory / "model.pt"
    tensors = {
        f"layer.{each}": torch.randint(0, 255, (16 << 20,), dtype=torch.uint8)
        for each in range(megabytes // 16)
    }
    torch.save(tensors, path)
    size = path.stat().st_size
    readers: dict[str, Callable[[], object]] = {
        _OURS: lambda: _require_good(path),
        "zipfile.testzip": lambda: zipfile.ZipFile(path).testzip(),
        "sha256sum": lambda: subprocess.run(["sha256sum", path], capture_output=True, check=True),
    }
    samples: dict[str, list[float]] = {what: [] for what in readers}
    for _ in range(times):
        for what, read in readers.items():  # in turn, so that a busy machine is busy for all
            began = time.perf_counter()
            read()
            samples[what].append(size / (time.perf_counter() - began))
    samples["rankwatch checkpoint verify, manifest (SHA-256)"] = _manifest_rates(path, times)
    path.unlink()
    return samples


def _manifest_rates(file: Path, times: int) -> list[float]:
    folder = file.with_name("step-1")
    folder.mkdir()
    with ManifestWriter(folder, step=1) as manifest, manifest.open("model.pt") as copy:
        copy.write(file.read_bytes())
    merge(folder, 1)
    samples = []
    for _ in range(times):
        began = time.perf_counter()
        _require_good(folder)
        samples.append(file.stat().st_size / (time.perf_counter() - began))
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    return samples


def _require_good(path: Path) -> None:
    found = verify(path)
    if found.outcome is not Outcome.GOOD:
        raise BenchError(f"{path} is {found.outcome}: {found.problems[:1]}")


def _rate_row(what: str, samples: list[float], has_target: bool) -> Row:
    median = statistics.median(samples)
    spread = f"{min(samples) / 1e9:.2f} to {max(samples) / 1e9:.2f}"
    target = f">= {_LEAST_RATE / 1e9:g} GB/s" if has_target else ""
    return Row(
        what, f"{median / 1e9:.2f} GB/s", spread, target, median >= _LEAST_RATE if has_target else None
    )


def _pt(directory: Path) -> Path:
    torch.save(state(), directory / "step-1.pt")
    return directory / "step-1.pt"


def _distributed(directory: Path) -> Path:
    return save_distributed(directory / "step-2")


def _manifest(directory: Path) -> Path:
    folder = directory / "step-3"
    folder.mkdir()
    for rank in range(2):
        with ManifestWriter(folder, step=3, rank=rank) as manifest, manifest.open(f"model-{rank}.pt") as file:
            torch.save(state(), file)
    merge(folder, 2)
    return folder


_KINDS: dict[str, Callable[[Path], Path]] = {
    ".pt": _pt,
    "torch.distributed.checkpoint": _distributed,
    "manifest": _manifest,
}


def _damage(directory: Path, kind: str, count: int) -> _Found:
    """Damage a checkpoint so often, each time anew, with places by the sizes of its files."""
    path = _KINDS[kind](directory)
    _require_good(path)
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    sizes = [each.stat().st_size for each in files]
    dice = random.Random(_SEED)
    flipped = truncated = without_tensor = 0
    missed = []
    for _ in range(count):
        (file,) = dice.choices(files, weights=sizes)
        content = file.read_bytes()
        if dice.random() < _TRUNCATED_SHARE:
            truncated, place = (
                truncated + 1,
                f"{file.name} cut off at {(size := dice.randrange(len(content)))}",
            )
            truncate(file, size)
        else:
            flipped, place = flipped + 1, f"{file.name}, bit {(bit := dice.randrange(8 * len(content)))}"
            flip(file, bit)
        found = verify(path)
        named = [each for each in found.problems if each.file.endswith(file.name)]
        if found.outcome is not Outcome.DAMAGED or not named:
            missed.append(place)
        elif not any(each.tensor for each in named):
            without_tensor += 1
        file.write_bytes(content)
    return _Found(flipped, truncated, tuple(missed), without_tensor)
