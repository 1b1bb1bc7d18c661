"""Stall: one rank stops in its forward while its peers wait for it in a collective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The rank stops for `seconds`, or for ever where none are given."""

    name: ClassVar[str] = "stall"
    lasting: ClassVar[bool] = False
    seconds: float = math.inf

    def apply(self, conditions: Conditions) -> None:
        """The longest of several stalls counts."""
        conditions.stall_seconds = max(conditions.stall_seconds, self.seconds)
