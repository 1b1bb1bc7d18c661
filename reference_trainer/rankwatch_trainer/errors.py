"""The errors the trainer raises on purpose.

TrainerError
├── UsageError        what the user asked for cannot be done; exit status 2
└── CheckpointError   a checkpoint could not be written, verified or read
"""

from __future__ import annotations


class TrainerError(Exception):
    """Base of all errors the trainer raises on purpose; its message is one sentence."""


class UsageError(TrainerError):
    """A flag, a fault or an input cannot be used; the message names it and what was expected."""


class CheckpointError(TrainerError):
    """A checkpoint is damaged, incomplete or does not fit this run."""
