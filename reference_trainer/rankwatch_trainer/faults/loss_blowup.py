"""Loss blow-up: a learning rate far too large, and a loss that leaves its trend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class LossBlowup:
    """The learning rate is `factor` times what the schedule says; name no rank.

    It must strike all ranks in the same steps, else their weights drift apart. In a fault file give a
    step a little ahead (`from=+5` is counted by each rank from its own step).

    AdamW with clipped gradients is hard to blow up: at the default factor a small model jumps to some
    ten times its noise and recovers within tens of steps, which is a spike and no divergence;
    `factor=3000` for five steps keeps the emulated model away from its trend for about 80.
    """

    name: ClassVar[str] = "loss-blowup"
    lasting: ClassVar[bool] = True
    factor: float = 100.0

    def apply(self, conditions: Conditions) -> None:
        """Multiplies the learning rate."""
        conditions.learning_rate_factor *= self.factor
