"""Data stuck: a rank waits for a batch that never comes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class DataStuck:
    """The batch of a step comes `seconds` later, or never where none are given; with a rank named, its peers
    wait for it in a collective.
    """

    name: ClassVar[str] = "data-stuck"
    lasting: ClassVar[bool] = False
    seconds: float = math.inf

    def apply(self, conditions: Conditions) -> None:
        """Adds to the delay of the batch."""
        conditions.batch_delay_seconds += self.seconds
