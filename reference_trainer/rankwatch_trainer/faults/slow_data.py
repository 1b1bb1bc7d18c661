"""Slow data: the input pipeline of one rank does not keep up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class SlowData:
    """Each step's batch comes `seconds` later."""

    name: ClassVar[str] = "slow-data"
    lasting: ClassVar[bool] = True
    seconds: float = 0.1

    def apply(self, conditions: Conditions) -> None:
        """Delays of several such faults add up."""
        conditions.batch_delay_seconds += self.seconds
