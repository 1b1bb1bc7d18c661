"""The files of a checkpoint, each held against rankwatch's manifest while they are read."""

from __future__ import annotations

from pathlib import Path

from rankwatch.checkpoint_files import CheckpointError as ManifestError
from rankwatch.checkpoint_files import Manifest, digest_of
from rankwatch.checkpoint_files.manifest import NAME, as_bytes, parse
from rankwatch_trainer.errors import CheckpointError

__all__ = ["NAME", "manifest_of", "read_verified"]


def manifest_of(step: int, files: dict[str, bytes]) -> bytes:
    """The manifest of these contents, as they are in memory, before a disk has touched them."""
    digests = {name: digest_of(content) for name, content in files.items()}
    return as_bytes(Manifest(step, "sha256", digests))


def read_verified(directory: Path) -> dict[str, bytes]:
    """The contents of a checkpoint's files, each held against the manifest.

    Raises CheckpointError for whatever is missing, unreadable or different.
    """
    try:
        manifest = parse(_read(directory / NAME), directory / NAME)
    except ManifestError as cause:
        raise CheckpointError(str(cause)) from cause
    contents: dict[str, bytes] = {}
    for name, expected in manifest.files.items():
        content = contents[name] = _read(directory / name)
        if len(content) != expected.bytes:
            problem = f"it has {len(content)} bytes, expected {expected.bytes}"
            raise CheckpointError(f"could not verify {directory / name}: {problem}")
        digest = digest_of(content, manifest.algorithm).digest
        if digest != expected.digest:
            problem = f"its SHA-256 is {digest[:12]}..., expected {expected.digest[:12]}..."
            raise CheckpointError(f"could not verify {directory / name}: {problem}")
    return contents


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise CheckpointError(f"could not read {path}: {cause.strerror}") from cause
