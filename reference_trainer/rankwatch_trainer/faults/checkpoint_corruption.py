"""Checkpoint corruption: what is on the disk is not what was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class CheckpointCorruption:
    """Bytes of checkpoints of these steps are flipped on the way to the disk; needs --checkpoint-dir."""

    name: ClassVar[str] = "checkpoint-corruption"
    lasting: ClassVar[bool] = True

    def apply(self, conditions: Conditions) -> None:
        """Makes the disk lie."""
        conditions.checkpoint_is_corrupted = True
