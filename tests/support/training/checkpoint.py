"""A checkpoint that takes no torch."""

from __future__ import annotations

from pathlib import Path

from rankwatch.checkpoint_files import ManifestWriter, merge


def checkpoint(folder: Path, step: int) -> Path:
    """A folder of one file with a manifest."""
    path = folder / f"step-{step}"
    path.mkdir(parents=True)
    with ManifestWriter(path, step=step) as manifest, manifest.open("model.bin") as file:
        file.write(b"weights" * 1000)
    merge(path, 1)
    return path
