"""Checkpoints on disk, verified with the standard library alone: no pickle is ever executed.

from rankwatch import checkpoint_files

found = checkpoint_files.newest("/checkpoints")
if found.path is not None:
    resume(found.path)
"""

from rankwatch.checkpoint_files.manifest import HashingFile, Manifest, ManifestWriter, digest_of, merge
from rankwatch.checkpoint_files.newest import Newest, newest
from rankwatch.checkpoint_files.result import (
    CheckpointError,
    CheckpointGoneError,
    Damage,
    Outcome,
    Problem,
    Unchecked,
    Verification,
)
from rankwatch.checkpoint_files.verify import verify

__all__ = [
    "verify",
    "newest",
    "Verification",
    "Newest",
    "Outcome",
    "Problem",
    "Damage",
    "Unchecked",
    "ManifestWriter",
    "HashingFile",
    "Manifest",
    "merge",
    "digest_of",
    "CheckpointError",
    "CheckpointGoneError",
]
