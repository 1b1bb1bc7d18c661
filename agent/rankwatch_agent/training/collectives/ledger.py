"""What the collectives of one rank add up to, and those that wait to be compared with other ranks'."""

from __future__ import annotations

from typing import NamedTuple

MOST_PENDING = 1024
"""Collectives of a group kept for comparison; a rank that is further ahead of its peers forgets some."""
MOST_PENDING_OF_RANK = 8192
"""Likewise over all groups of a rank."""


class GroupKey(NamedTuple):
    """A process group as labels name it."""

    group: str
    members: str
    """Empty where they are not known: then its collectives cannot be compared between ranks."""


class CollectiveTotals:
    """Collectives of one group and operation."""

    __slots__ = ("bytes", "count", "operation", "seconds", "timed", "wait_seconds")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.count = 0
        self.bytes = 0
        self.seconds = 0.0
        self.timed = True
        """Whether the source has told the time of one."""
        self.wait_seconds: float | None = None
        """Beyond the last arriver of this node; None while none was compared."""


Finished = tuple[float, int, CollectiveTotals]
"""A completed collective: seconds (NaN where not known), bytes of input, where its wait is added up."""


class GroupLedger:
    """Completed collectives of one rank in one group, by their number in the group."""

    __slots__ = ("completed", "finished", "key", "size")

    def __init__(self, key: GroupKey, size: int) -> None:
        self.key = key
        self.size = size
        """Number of the group's ranks; 0 while it is not known."""
        self.finished: dict[int, Finished] = {}
        """By number, in the order of completion."""
        self.completed = 0
        """Highest number that completed, from 1; 0 while none has."""

    def note_completed(self) -> None:
        """Take the highest number among those kept; call it before they are compared."""
        if self.finished:
            self.completed = max(self.completed, max(self.finished) + 1)

    def let_go(self, keep: int) -> None:
        """Forget all but the newest: their peers' records are lost, or still far away."""
        finished = self.finished
        for number in list(finished)[: max(0, len(finished) - keep)]:
            del finished[number]
