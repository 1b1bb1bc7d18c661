"""Straggler: one rank computes, but slower than its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank's layers take `factor` times as long, forward and backward; in a job of one rank, or where no
    rank is named, the whole job is slower and no rank lags behind.
    """

    name: ClassVar[str] = "straggler"
    lasting: ClassVar[bool] = True
    factor: float = 1.5

    def apply(self, conditions: Conditions) -> None:
        """Two stragglers on one rank multiply."""
        conditions.compute_factor *= self.factor
