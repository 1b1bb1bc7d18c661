"""Skip collective: one rank leaves an all-reduce out and goes on, and its peers do not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class SkipCollective:
    """The rank does not reduce its gradients in one step and goes on; name a rank.

    Nothing hangs at once: its all-reduce of the next step meets that of its peers' present one, and so
    on. At the next collective of another kind (a checkpoint, an evaluation) all ranks wait for ever.
    """

    name: ClassVar[str] = "skip-collective"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """Keeps the gradients of the step to the rank."""
        conditions.gradients_are_reduced = False
