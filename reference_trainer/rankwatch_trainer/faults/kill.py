"""Kill: one rank dies without a word, as by the OOM killer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rankwatch_trainer.faults.conditions import Conditions


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The rank sends itself SIGKILL in its forward."""

    name: ClassVar[str] = "kill"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """Marks the rank as doomed."""
        conditions.killed = True
