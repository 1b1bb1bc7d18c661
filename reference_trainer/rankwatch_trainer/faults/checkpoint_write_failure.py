"""Checkpoint write failure: the disk is full when a checkpoint is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class CheckpointWriteFailure:
    """Writing a checkpoint in these steps raises OSError with ENOSPC; needs --checkpoint-dir."""

    name: ClassVar[str] = "checkpoint-write-failure"
    lasting: ClassVar[bool] = True

    def apply(self, conditions: Conditions) -> None:
        """Fills the disk, as far as checkpoints see it."""
        conditions.checkpoint_write_fails = True
