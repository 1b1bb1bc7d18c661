"""Ctrl-C and SIGTERM, which end the demo whenever they come."""

from __future__ import annotations

import signal
from types import FrameType


class EndSignals:
    """Raises when SIGINT or SIGTERM comes, and again at every `check` from then on.

    The second is needed because Python may lose the first. An exception raised by a signal handler is
    replaced if it comes while another error's message is formatted, and the parser of metrics raises and
    catches such an error at each value with a decimal point.
    """

    def __init__(self) -> None:
        self._received: int | None = None

    def install(self) -> None:
        """Handle SIGINT and SIGTERM from now on. Main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler; raises as `check` does."""
        self._received = number
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt after SIGINT, SystemExit with a shell's exit status after SIGTERM."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise SystemExit(128 + self._received)
