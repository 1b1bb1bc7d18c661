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

    def least(self) -> float | None:
        """The least typical time in collectives of a rank; None before there is one."""
        typical = [each.typical for each in self.ranks if each.typical is not None]
        return min(typical, default=None)


class Transfers:
    """The time in collectives of one rank."""

    def __init__(self, role: RoleTransfers) -> None:
        self.typical: float | None = None
        """Median over the last steps, in seconds; of a rank alone the lowest tenth."""
        self._role = role
        self._recent: deque[float] = deque(maxlen=_STEPS)
        self._since = 0
        role.ranks.append(self)

    def waited(self, communication: float) -> float:
        """Of a step's seconds in collectives those beyond the transfers themselves."""
        self._recent.append(communication)
        self._since += 1
        if self.typical is None or self._since >= _EVERY:
            self._since = 0
            alone = len(self._role.ranks) == 1
            self.typical = (
                sorted(self._recent)[int(_LEAST * len(self._recent))] if alone else median(self._recent)
            )
        least = self._role.least()
        return 0.0 if least is None else max(0.0, communication - least)

    def leave(self) -> None:
        """The rank has ended: it is no measure for the others any more."""
        self.typical = None
        self._recent.clear()
