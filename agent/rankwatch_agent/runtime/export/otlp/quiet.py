"""Keeps the SDK's exporter, which logs at every failure, from filling the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

QUIET_SECONDS = 60.0
"""Least time between two messages."""


class QuietFilter(logging.Filter):
    """Lets one record through in QUIET_SECONDS; attached to the exporter's own logger only."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        now = self._monotonic()
        if now - self._last < QUIET_SECONDS:
            return False
        self._last = now
        return True
