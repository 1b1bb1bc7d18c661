"""A checkpoint that takes no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankwatch_checkpoints import ManifestWriter, merge


def checkpoint(folder: Path, step: int) -> Path:
    """A folder of one file with a manifest."""
    path = folder / f"step-{step}"
    path.mkdir(parents=True)
    with ManifestWriter(path, step=step) as manifest, manifest.open("model.bin") as file:
        file.write(b"weights" * 1000)
    merge(path, 1)
    return path


def note(box: Path, *saves: tuple[Path | str, int, float], **others: Any) -> None:
    """The note beside a box, the newest save first."""
    entries = [
        {"operation": "save", "step": step, "path": str(path), "ended": ended, "failed": False, **others}
        for path, step, ended in saves
    ]
    box.with_suffix(".checkpoints").write_text(json.dumps({"checkpoints": entries}))
