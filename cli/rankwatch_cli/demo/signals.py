"""Ctrl-C and SIGTERM, heard wherever they come."""

from __future__ import annotations

import signal
from types import FrameType


class Leaving:
    """Raises what ends the demo when a signal comes, and at every `check` from then on.

    The second is needed because Python may lose the first: where a signal comes while the message of an error
    is put together, that error is raised in its stead. The parser of metrics makes and catches such an error
    at each value with a decimal point, so that Ctrl-C went unheard now and then.
    """

    def __init__(self) -> None:
        self._asked: int | None = None

    def listen(self) -> None:
        """From now on SIGINT and SIGTERM are heard; main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.hear)

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """A signal has come; raises as `check` does."""
        self._asked = number
        self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt after SIGINT, SystemExit with the status a shell expects after SIGTERM."""
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self._asked is not None:
            raise SystemExit(128 + self._asked)
