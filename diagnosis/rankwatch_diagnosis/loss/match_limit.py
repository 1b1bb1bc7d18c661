"""A bound on what a user's regular expression may take on one line.

A repetition within a repetition, as in `(a+)+`, tries ways whose number doubles with each character. Python's
engine looks for signals while it matches, so a timer can end it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.log import Extract

MATCH_SECONDS = 5.0
"""Time of the processor on one line after which a match is given up, at the latest after twice as long. Lines
have at most 16 KiB, for which an ordinary pattern takes a small part of that; the length of the file does not
count."""
_SHOWN = 40


@contextmanager
def bounded(extract: Extract, *, seconds: float = MATCH_SECONDS) -> Iterator[Extract]:
    """Inside, the `extract` it gives raises UserError on a line that takes longer. Main thread only."""
    watch = _Watch(extract, seconds)
    before = signal.signal(signal.SIGVTALRM, watch.tick)
    # Time of this process alone: neither a busy machine nor a slow pipe makes a line long.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


class _Watch:
    """Counts for the timer: a line that two ticks find is one too long. Costs no system call for a line."""

    def __init__(self, extract: Extract, seconds: float) -> None:
        self._extract = extract
        self._seconds = seconds
        self._line: str | None = None
        self._at_last_tick: str | None = None

    def __call__(self, line: str) -> dict[str, str]:
        self._line = line
        try:
            return self._extract(line)
        finally:
            self._line = self._at_last_tick = None

    def tick(self, number: int, frame: FrameType | None) -> None:
        """The handler of the timer's signal."""
        if self._line is not None and self._line is self._at_last_tick:
            raise UserError(
                f"--pattern takes more than {self._seconds:g} s on the line {self._line[:_SHOWN].strip()!r}: "
                "it may repeat a repetition, as (a+)+ does; write it without"
            )
        self._at_last_tick = self._line
