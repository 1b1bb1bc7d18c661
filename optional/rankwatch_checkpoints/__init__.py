"""Checkpoints on disk, verified with the standard library alone: no pickle is ever executed.

import rankwatch_checkpoints

found = rankwatch_checkpoints.newest("/checkpoints")
if found.path is not None:
    resume(found.path)
"""

from rankwatch_checkpoints.manifest import HashingFile, Manifest, ManifestWriter, digest_of, merge
from rankwatch_checkpoints.newest import Newest, newest
from rankwatch_checkpoints.result import (
    CheckpointError,
    CheckpointGoneError,
    Damage,
    Outcome,
    Problem,
    Unchecked,
    Verification,
)
from rankwatch_checkpoints.verify import verify

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
