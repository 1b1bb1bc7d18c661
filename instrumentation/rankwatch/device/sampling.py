"""Which steps have their phases timed: all of long steps, and each n-th of short ones."""

from __future__ import annotations

from collections.abc import Sequence

from rankwatch.device.parts import WAIT, Mark

PHASE_SECONDS = 1.2e-5
"""Host time of the event of a phase, recorded and read: 12 us beside an H200 (docs/testing.md)."""
MOST_OF_STEP = 0.005
"""Part of a step that the events of its phases may take on the host. Of shorter steps only each n-th has
them, n a power of two up to MOST_EVERY, by the step's number, so that all ranks time the same ones."""
MOST_EVERY = 32


class PhaseSampling:
    """The choice for one rank."""

    def __init__(self) -> None:
        self._every = 1
        """The phases of each so many-th step are timed."""
        self._number, self._passed = -1, 0
        """Number of the last step, and steps since the last whose phases were timed."""
        self._events = 0
        """Events of phases in that step."""

    def times_next(self, number: int) -> bool:
        """A step of this number is over. Returns True if the phases of the next one are to be timed."""
        stride = max(1, number - self._number)  # some count in batches of their own
        self._number = number
        if self._every > 1:
            self._passed += 1
            if (number // stride + 1) % self._every and self._passed < 2 * self._every:
                return False  # twice as many pass only where numbers begin again with short epochs
            self._passed = 0
        return True

    def resolved(self, marks: Sequence[Mark], seconds: float, *, untimed: bool) -> None:
        """The device has finished a step of this length. Besides the events of its phases it has two, and
        two for each wait."""
        if not untimed:
            self._events = len(marks) - 2 - 2 * sum(mark[WAIT] is not None for mark in marks)
        taken, allowed, every = self._events * PHASE_SECONDS, MOST_OF_STEP * seconds, 1
        while every < MOST_EVERY and taken > allowed * every:
            every *= 2
        self._every = every
