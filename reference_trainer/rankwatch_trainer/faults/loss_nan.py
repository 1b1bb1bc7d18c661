"""Loss NaN: the loss of a rank is not a number, and with it all gradients after the all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class LossNaN:
    """The loss is NaN in one step; the weights, and so the loss, are NaN in every step that follows."""

    name: ClassVar[str] = "loss-nan"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """Spoils the loss of the step."""
        conditions.loss_is_nan = True
