"""What the accounts of a run's ranks share: its attempts, and what a step spends in transfers.

Each attempt has the time in which this node saw it run, and how far it came.

The last rank to arrive at a collective waits for nobody. So of the ranks of a node that do the same (one
pipeline stage), the least typical time in collectives is what transfers take, and the rest is waiting for
other ranks. A rank alone on its node is compared with its own steps that waited least."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

MOST_ATTEMPTS = 100
"""Of a run that are kept apart. Of more, the oldest are joined."""


@dataclass
class AttemptRecord:
    """One attempt. Moments are Unix time."""

    started: float
    """When the first process of its ranks here started."""
    last: float
    """Its last sign of life."""
    world_size: int
    first_step: int | None = None
    """The lowest step that a rank has completed in it."""
    highest_step: int = -1


class AttemptHistory:
    """Number of an attempt -> what is known of it."""

    def __init__(self) -> None:
        self.by_number: dict[int, AttemptRecord] = {}
        self._replay_until: dict[int, int] = {}

    @property
    def newest(self) -> int:
        """Number of the newest attempt; 0 before the first one."""
        return max(self.by_number, default=0)

    def begin(self, number: int, started: float, world_size: int) -> None:
        span = self.by_number.get(number)
        if span is None:
            self.by_number[number] = AttemptRecord(started, started, world_size)
            self._join_oldest()
        else:
            span.started = min(span.started, started)
        self._replay_until.clear()

    def note_step(self, number: int, step: int, wall: float) -> bool:
        """Take a step that a rank has completed; returns whether an earlier attempt had completed it.

        An attempt that was joined is the oldest one that is kept.
        """
        number = number if number in self.by_number else min(self.by_number)
        span = self.by_number[number]
        if step > span.highest_step:
            span.highest_step = step
            self._replay_until.clear()
        if span.first_step is None or step < span.first_step:
            span.first_step = step
        span.last = max(span.last, wall)
        until = self._replay_until.get(number)
        if until is None:
            earlier = (each.highest_step for at, each in self.by_number.items() if at < number)
            until = self._replay_until[number] = max(earlier, default=-1)
        return step <= until

    def _join_oldest(self) -> None:
        while len(self.by_number) > MOST_ATTEMPTS:
            first, second, *_ = sorted(self.by_number)
            gone, kept = self.by_number.pop(first), self.by_number[second]
            kept.started = min(kept.started, gone.started)
            kept.highest_step = max(kept.highest_step, gone.highest_step)


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
        """Return those of a step's seconds in collectives that go beyond the transfers themselves."""
        self._recent.append(communication)
        self._since += 1
        if self._since >= _EVERY or self.typical is None:
            self._learn()
        least = self._role.least
        return communication - least if least is not None and communication > least else 0.0

    def leave(self) -> None:
        """End the rank: it is no measure for the others any more."""
        self.living = False
        self._role.update()

    def forget(self) -> None:
        """Forget this rank: nobody will ask for it again."""
        self._role.ranks.remove(self)

    def _learn(self) -> None:
        self.living, self._since = True, 0
        alone = len(self._role.ranks) == 1
        recent = self._recent
        self.typical = sorted(recent)[int(_LEAST * len(recent))] if alone else median(recent)
        self._role.update()
