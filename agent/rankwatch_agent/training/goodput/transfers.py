"""What a step of a run spends in transfers, without waiting: by the rank that waits least.

The last rank to arrive at a collective waits for nobody. So of the ranks of a node that do the same (one
pipeline stage), the least typical time in collectives is what transfers take, and the rest is waiting for
other ranks. A rank alone on its node is compared with its own steps that waited least.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_STEPS = 32
"""Over which a rank's typical time is taken."""
_EVERY = 8
"""Steps after which it is taken again."""
_LEAST = 0.1
"""Share of a rank's own steps that waited least."""


class RoleTransfers:
    """The ranks of one node and one role."""

    def __init__(self) -> None:
        self.ranks: list[Transfers] = []
        self.least: float | None = None
        """The least typical time in collectives of a living rank; None before there is one."""
        self._told = False

    def tell(self, least: float | None) -> None:
        """Set the least one, where it is known beforehand: ranks that are read one after the other cannot be
        compared while they are read."""
        self.least, self._told = least, least is not None

    def update(self) -> None:
        """Take it again."""
        if not self._told:
            typical = [each.typical for each in self.ranks if each.living and each.typical is not None]
            self.least = min(typical, default=None)


class Transfers:
    """The time in collectives of one rank."""

    def __init__(self, role: RoleTransfers) -> None:
        self.typical: float | None = None
        """Median over the last steps, in seconds; of a rank alone the lowest tenth."""
        self.living = True
        self._role = role
        self._recent: deque[float] = deque(maxlen=_STEPS)
        self._since = 0
        role.ranks.append(self)

    def waited(self, communication: float) -> float:
        """Of a step's seconds in collectives those beyond the transfers themselves."""
        self._recent.append(communication)
        self._since += 1
        if self._since >= _EVERY or self.typical is None:
            self._learn()
        least = self._role.least
        return communication - least if least is not None and communication > least else 0.0

    def leave(self) -> None:
        """The rank has ended: it is no measure for the others any more."""
        self.living = False
        self._role.update()

    def forget(self) -> None:
        """Nobody will ask for this rank again."""
        self._role.ranks.remove(self)

    def _learn(self) -> None:
        self.living, self._since = True, 0
        alone = len(self._role.ranks) == 1
        recent = self._recent
        self.typical = sorted(recent)[int(_LEAST * len(recent))] if alone else median(recent)
        self._role.update()
