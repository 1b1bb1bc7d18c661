"""Keeps a fault that repeats every second from filling the log."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEAT_SECONDS = 600.0
"""A message that goes on is logged again after this long, so that a log that was rotated still tells it."""
MAX_MESSAGES = 1000
"""Distinct messages remembered; beyond, all are forgotten and may be logged once more."""


class LogLimit:
    """Says whether a message should be logged now: at its first occurrence, then once in REPEAT_SECONDS.

    Not safe for several threads at once.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._logged: dict[str, float] = {}

    def allows(self, message: str) -> bool:
        """True where `message` is new or was last logged REPEAT_SECONDS ago."""
        now = self._monotonic()
        last = self._logged.get(message)
        if last is not None and now - last < REPEAT_SECONDS:
            return False
        if len(self._logged) >= MAX_MESSAGES:
            self._logged.clear()
        self._logged[message] = now
        return True
