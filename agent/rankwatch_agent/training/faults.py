"""Counts what is wrong with black boxes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from rankwatch.conventions.states import BoxFault
from rankwatch_agent.runtime.logs import LogLimit

_MAX_REMEMBERED = 10_000
_log = logging.getLogger(__name__)


class BoxFaults:
    """Counts faults by reason: each box once per reason. The log names each, as far as its limit allows."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.last: dict[str, float] = {}
        """Unix time of the last one of each reason that occurred."""
        self._wall = wall
        self.by_reason: dict[str, int] = {fault.value: 0 for fault in BoxFault}
        """Every reason is present, because an alert sees only what rises from a first value."""
        self._noted: set[tuple[Path, str]] = set()
        self._log_limit = LogLimit()

    def note(self, path: Path, reason: str, message: str) -> None:
        """Count the fault unless this file had it before."""
        if (path, reason) in self._noted:
            return
        if len(self._noted) >= _MAX_REMEMBERED:
            self._noted.clear()
        self._noted.add((path, reason))
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        self.last[reason] = self._wall()
        # Somebody else chose the bytes of file names: no line break, and nothing that is no text, may pass.
        text = message.encode("unicode_escape").decode("ascii")
        if self._log_limit.allows(text):
            _log.warning("black box left out (%s): %s", reason, text)
