"""Keeps a fault that repeats every second from filling the log."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEAT_SECONDS = 600.0
"""A message that goes on is logged again after this long, so that a log that was rotated still tells it."""
MAX_MESSAGES = 1000
"""Distinct messages remembered; beyond, all are forgotten and may be logged once more."""

MAX_BURST = 100
"""Messages allowed within BURST_SECONDS: hundreds of files that fail at once say the same with each."""
BURST_SECONDS = 60.0


class LogLimit:
    """Says whether a message should be logged now: at its first occurrence, then once in REPEAT_SECONDS.

    Beyond MAX_BURST within BURST_SECONDS none is, new or not; what goes on is then logged later.

    Not safe for several threads at once.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._logged: dict[str, float] = {}
        self._burst_began = float("-inf")
        self._burst = 0

    def allows(self, message: str) -> bool:
        """True where `message` is new or was last logged REPEAT_SECONDS ago, and is not one too many."""
        now = self._monotonic()
        last = self._logged.get(message)
        if last is not None and now - last < REPEAT_SECONDS:
            return False
        if now - self._burst_began >= BURST_SECONDS:
            self._burst_began, self._burst = now, 0
        if self._burst >= MAX_BURST:
            return False
        self._burst += 1
        if len(self._logged) >= MAX_MESSAGES:
            self._logged.clear()
        self._logged[message] = now
        return True
