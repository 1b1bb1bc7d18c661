"""Other collective: one rank broadcasts where its peers all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class OtherCollective:
    """The rank waits in a broadcast where its peers all-reduce their gradients, and all wait for ever; name
    a rank.
    """

    name: ClassVar[str] = "other-collective"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """Puts a broadcast in the place of the all-reduce of the step."""
        conditions.gradients_are_reduced = False
        conditions.calls_broadcast = True
