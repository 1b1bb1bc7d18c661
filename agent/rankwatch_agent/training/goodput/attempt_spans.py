"""The attempts of a run as this node saw them: when each ran, and how far it came."""

from __future__ import annotations

from dataclasses import dataclass

MOST_ATTEMPTS = 100
"""Of a run that are kept apart. Of more, the oldest are joined."""


@dataclass
class AttemptSpan:
    """One attempt. Moments are Unix time."""

    started: float
    """When the first process of its ranks here started."""
    last: float
    """Its last sign of life."""
    world_size: int
    first_step: int | None = None
    """The lowest step that a rank has completed in it."""
    highest_step: int = -1


class AttemptSpans:
    """Number of an attempt -> what is known of it."""

    def __init__(self) -> None:
        self.by_number: dict[int, AttemptSpan] = {}
        self._replay_until: dict[int, int] = {}

    @property
    def newest(self) -> int:
        """Number of the newest attempt; 0 before the first one."""
        return max(self.by_number, default=0)

    @property
    def highest_step(self) -> int:
        """The highest step that was ever completed; -1 before the first."""
        return max((each.highest_step for each in self.by_number.values()), default=-1)

    def begin(self, number: int, started: float, world_size: int) -> None:
        """A process of an attempt has started."""
        span = self.by_number.get(number)
        if span is None:
            self.by_number[number] = AttemptSpan(started, started, world_size)
            self._join_oldest()
        else:
            span.started = min(span.started, started)
        self._replay_until.clear()

    def note_step(self, number: int, step: int, wall: float) -> bool:
        """A rank has completed a step; returns whether an earlier attempt had completed it.

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
