"""What a fault is, and when it strikes: the contract every fault follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from rankwatch_trainer.faults.conditions import Conditions


class Fault(Protocol):
    """One way to go wrong: a frozen dataclass whose fields are the parameters of the fault."""

    name: ClassVar[str]
    """Name on the command line."""
    lasting: ClassVar[bool]
    """True: without `until` it stays to the end of the run; False: without `until` it strikes one step."""

    def apply(self, conditions: Conditions) -> None:
        """Worsens the conditions of a step the fault is active in."""
        ...


@dataclass(frozen=True, kw_only=True)
class ScheduledFault:
    """A fault, the rank it strikes and the steps it is active in."""

    fault: Fault
    rank: int | None
    """None: every rank."""
    from_step: int
    until_step: float
    """First step without the fault; infinity for none."""

    def strikes(self, rank: int, step: int) -> bool:
        """Whether the fault is active on this rank in this step."""
        return self.rank in (None, rank) and self.from_step <= step < self.until_step
