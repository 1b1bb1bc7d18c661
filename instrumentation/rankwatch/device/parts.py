"""What the compute stream did in a step: from its marks, and the times between them, to records.

All long steps have marks at their phases, and each n-th of short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer

NO_MESSAGES = (0,) * layout.DEVICE_MESSAGES
MOMENT: Final = 0
EVENT: Final = 1
WAIT: Final = 3
"""Places in a mark."""
NUMBER_BITS = 8
NUMBER = (1 << NUMBER_BITS) - 1
"""Bits of a phase that hold its own number."""
_MOST_COUNTED = 0xFFFF
_PHASE_TAG = layout.tag(RecordKind.DEVICE_PHASE, 0)
_pack = layout.DEVICE.pack_into
PHASE_SECONDS = 1.2e-5
"""Host time of the event of a phase, recorded and read: 12 us beside an H200 (docs/testing.md)."""
MOST_OF_STEP = 0.005
"""Part of a step that the events of its phases may take on the host. Of shorter steps only each n-th has
them, n a power of two up to MOST_EVERY, by the step's number, so that all ranks time the same ones."""
MOST_EVERY = 32


class WaitKey(NamedTuple):
    """What the stream waits for."""

    operation: int
    """Number of its name."""
    group: int
    """Number of the group's name."""
    flags: int
    """As of a record of a collective."""
    messages: tuple[int, ...] = NO_MESSAGES
    """Of a batch, as in a record."""
    marks: int = 0
    """Number of marks that were made before the batch was enqueued."""


Mark = tuple[float, Any, int, WaitKey | None]
"""When it was enqueued, on the host's clock; the event; and what the stream does from there to the next one:
the innermost open phase, and what it waits for. A plain tuple, because there are many in each step. The phase
is 256 times a number that tells apart the times it ran, and its own number; 0 where none is open."""


class _Wait:
    """What the stream waited for one operation of one group in one phase."""

    __slots__ = ("count", "ended", "seconds", "since")

    def __init__(self, since: float) -> None:
        self.since = self.ended = since
        """When it began to wait, or when the batch was enqueued that it waited for."""
        self.count = 0
        self.seconds = 0.0


class _Part:
    """One time that a phase ran in a step, or what lies between two phases."""

    __slots__ = ("began", "ended", "own", "waits")

    def __init__(self, began: float) -> None:
        self.began = self.ended = began
        self.own = 0.0
        self.waits: dict[WaitKey, _Wait] | None = None

    def add_wait(self, key: WaitKey, since: float, at: float, seconds: float) -> None:
        """Add a wait of the stream, from the moment `at` on."""
        waits = self.waits = self.waits or {}
        wait = waits[key] = waits.get(key) or _Wait(since)
        wait.count += 1
        wait.seconds += seconds
        wait.ended = at + seconds


def write_step(
    writer: Writer,
    step: int,
    marks: Sequence[Mark],
    lengths: Sequence[float],
    began: float,
    *,
    marks_before: int = 0,
    unknown: bool,
    untimed: bool,
) -> float:
    """Record the phases and waits of a step, and then the step. Returns when it ended.

    lengths: seconds from each mark to the next. began: when the device passed the first one. marks_before: of
    earlier steps. unknown: own time and waits could not be told apart. untimed: phases inside were not timed.
    """
    parts: dict[int, _Part] = {}
    moments = list(accumulate(lengths, initial=began))
    waited, between = 0.0, 0
    for place, ((_, _, phase, key), seconds) in enumerate(zip(marks, lengths, strict=False)):
        at = moments[place]
        if not phase:
            phase = between
        elif between in parts and parts[between].waits:
            between -= 1  # a pipeline waits between phases, for another message each time
        part = parts.get(phase)
        if part is None:
            part = parts[phase] = _Part(at)
        if key is None:
            part.own += seconds
        else:
            waited += seconds
            since = at
            if key.messages is not NO_MESSAGES:
                if phase > 0:
                    key = key._replace(messages=NO_MESSAGES, marks=0)
                else:
                    if key.marks - marks_before < place:
                        since = moments[max(0, key.marks - marks_before - 1)]
                    key = key._replace(marks=place)  # the next batch may have the same messages
            part.add_wait(key, since, at, seconds)
        part.ended = at + seconds
    for phase, part in parts.items():
        _write(writer, step, phase & NUMBER if phase > 0 else 0, part)
    flags = unknown * layout.UNKNOWN_WAITS | untimed * layout.UNTIMED_PHASES
    ended = moments[-1]
    writer.append(RecordKind.DEVICE_STEP, 0, began, ended, layout.DEVICE_STEP, step, waited, flags)
    return ended


def _write(writer: Writer, step: int, phase: int, part: _Part) -> None:
    if phase:
        writer.pair(_PHASE_TAG | phase, part.began, part.ended, _pack, part.own, step)
    for (operation, group, flags, messages, _), wait in (part.waits or {}).items():
        first, second, third, fourth = messages
        writer.append(
            RecordKind.DEVICE_WAIT,
            operation,
            wait.since,
            wait.ended,
            layout.DEVICE_WAIT,
            wait.seconds,
            step,
            min(wait.count, _MOST_COUNTED),
            first,
            group,
            second,
            phase,
            third,
            flags,
            fourth,
        )


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
        """Return True if, after a step of this number, the phases of the next one are to be timed."""
        return (self._place_of(number) + 1) % self._every == 0

    def _place_of(self, number: int) -> int:
        """Return the place of this step among all, the same on each rank whenever it saw its first one."""
        if number > self._number:
            self._stride = number - self._number  # some count in batches of their own
        else:  # numbers begin again, as with each epoch
            self._shift = self._place + 1 - number // self._stride
        self._number, self._place = number, self._shift + number // self._stride
        return self._place

    def resolved(self, marks: Sequence[Mark], seconds: float, *, untimed: bool) -> None:
        """Take a step of this length that the device has finished. Besides the events of its phases it has
        two, and two for each wait."""
        if not untimed:
            self._events = len(marks) - 2 - 2 * sum(mark[WAIT] is not None for mark in marks)
        taken, allowed, every = self._events * PHASE_SECONDS, MOST_OF_STEP * seconds, 1
        while every < MOST_EVERY and taken > allowed * every:
            every *= 2
        self._every = every
