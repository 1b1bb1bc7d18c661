"""The manifest of a checkpoint: what its files must be, by size and SHA-256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TypedDict

from rankwatch_trainer.errors import CheckpointError

NAME = "manifest.json"
_FORMAT = 1


class FileEntry(TypedDict):
    """One file of a checkpoint."""

    bytes: int
    sha256: str


class Manifest(TypedDict):
    """Content of manifest.json."""

    format: int
    step: int
    files: dict[str, FileEntry]


def manifest_of(step: int, files: dict[str, bytes]) -> bytes:
    """The manifest of these contents, as they are in memory, before a disk has touched them."""
    entries: dict[str, FileEntry] = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    manifest: Manifest = {"format": _FORMAT, "step": step, "files": entries}
    return json.dumps(manifest, indent=1).encode()


def read_verified(directory: Path) -> dict[str, bytes]:
    """The contents of a checkpoint's files, each held against the manifest.

    Raises CheckpointError for whatever is missing, unreadable or different.
    """
    contents: dict[str, bytes] = {}
    for name, entry in _read_manifest(directory)["files"].items():
        try:
            content = (directory / name).read_bytes()
        except OSError as cause:
            raise CheckpointError(f"could not read {directory / name}: {cause.strerror}") from cause
        if len(content) != entry["bytes"]:
            problem = f"it has {len(content)} bytes, expected {entry['bytes']}"
            raise CheckpointError(f"could not verify {directory / name}: {problem}")
        digest = hashlib.sha256(content).hexdigest()
        if digest != entry["sha256"]:
            problem = f"its SHA-256 is {digest[:12]}..., expected {entry['sha256'][:12]}..."
            raise CheckpointError(f"could not verify {directory / name}: {problem}")
        contents[name] = content
    return contents


def _read_manifest(directory: Path) -> Manifest:
    path = directory / NAME
    try:
        manifest: Manifest = json.loads(path.read_bytes())
        if manifest["format"] != _FORMAT:
            raise CheckpointError(f"could not use {path}: its format is not {_FORMAT}")
        for entry in manifest["files"].values():
            int(entry["bytes"]), str(entry["sha256"])
    except OSError as cause:
        raise CheckpointError(f"could not read {path}: {cause.strerror}") from cause
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise CheckpointError(f"could not read {path}: it is no manifest of a checkpoint") from cause
    return manifest
