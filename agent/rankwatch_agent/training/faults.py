"""Faults of files: each counted once per file and reason, and named in the log once."""

from __future__ import annotations

import logging
from pathlib import Path

_log = logging.getLogger("rankwatch_agent")
_MAX_REMEMBERED = 10_000


class Faults:
    """Counts what was wrong with black boxes, by reason."""

    def __init__(self) -> None:
        self.by_reason: dict[str, int] = {}
        self._told: set[tuple[Path, str]] = set()

    def note(self, path: Path, reason: str, message: str) -> None:
        """Count the fault unless this file has had it before."""
        if (path, reason) in self._told:
            return
        if len(self._told) >= _MAX_REMEMBERED:
            self._told.clear()
        self._told.add((path, reason))
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        # Names of files are bytes that somebody else chose: no line break, and nothing that is no text.
        _log.warning("black box left out (%s): %s", reason, message.encode("unicode_escape").decode("ascii"))
