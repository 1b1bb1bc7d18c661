"""Data imbalance: sequences of unequal length, for which the ranks wait in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class DataImbalance:
    """The sequences of each micro-batch are cut to a length of their own, drawn at random between a full
    context divided by `ratio` and a full one; the work that is reported tells it.
    """

    name: ClassVar[str] = "data-imbalance"
    lasting: ClassVar[bool] = True
    ratio: float = 4.0

    def apply(self, conditions: Conditions) -> None:
        """The widest of several such faults counts."""
        conditions.length_ratio = max(conditions.length_ratio, self.ratio)
