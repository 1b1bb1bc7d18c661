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
        self._number, self._stride, self._place, self._shift = -1, 1, 0, 0
        """Number of the last step, by how much it grew, its place among all steps, and that of step 0."""
        self._events = 0
        """Events of phases in the last step that had them."""

    def times_next(self, number: int) -> bool:
        """A step of this number is over. Returns True if the phases of the next one are to be timed."""
        return (self._place_of(number) + 1) % self._every == 0

    def _place_of(self, number: int) -> int:
        """The place of this step among all, the same on each rank whenever that has seen its first one."""
        if number > self._number:
            self._stride = number - self._number  # some count in batches of their own
        else:  # numbers begin again, as with each epoch
            self._shift = self._place + 1 - number // self._stride
        self._number, self._place = number, self._shift + number // self._stride
        return self._place

    def resolved(self, marks: Sequence[Mark], seconds: float, *, untimed: bool) -> None:
        """The device has finished a step of this length. Besides the events of its phases it has two, and
        two for each wait."""
        if not untimed:
            self._events = len(marks) - 2 - 2 * sum(mark[WAIT] is not None for mark in marks)
        taken, allowed, every = self._events * PHASE_SECONDS, MOST_OF_STEP * seconds, 1
        while every < MOST_EVERY and taken > allowed * every:
            every *= 2
        self._every = every
