"""Jitter: single steps in which a rank pauses, as garbage collection or a busy host make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """The rank pauses for `seconds` in one step of `every`, drawn at random by rank and step; with no rank
    named, each rank does, in steps of its own.
    """

    name: ClassVar[str] = "jitter"
    lasting: ClassVar[bool] = True
    seconds: float = 0.2
    every: float = 5.0

    def apply(self, conditions: Conditions) -> None:
        """The last of several such faults counts."""
        conditions.pause_seconds = self.seconds
        conditions.pause_every_steps = self.every
