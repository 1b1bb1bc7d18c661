"""A JSON file in which a part of the agent keeps its state across restarts: whole, or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
"""By default."""
_UNUSABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors that reading and using the file can raise; OverflowError: a number in it is infinite."""


class StateFile:
    """The file; it and its directory may be missing.

    directory: of all state of the agent; without one nothing is kept.
    lost: what it means that the state is lost, for the log: "traces begin anew".
    """

    def __init__(self, directory: Path | None, name: str, *, lost: str, most_bytes: int = _MAX_BYTES) -> None:
        self._path = None if directory is None else directory / name
        self._most_bytes = most_bytes
        self._lost = lost
        self._log_limit = LogLimit()

    def save(self, document: object) -> None:
        """Write the state, so that it is there after a loss of power, too. A failure is logged.

        It waits for the disk, for some milliseconds or, where the disk is busy, longer: not once a second.
        """
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with Folder.open(self._path.parent, follow=True) as folder:
                folder.write(self._path.name, json.dumps(document).encode(), lasting=True)
        except OSError as error:
            if self._log_limit.allows("save"):
                logger.warning(
                    "could not write %s: %s; after a restart of the agent %s",
                    self._path,
                    error.strerror,
                    self._lost,
                )

    def load(self, use: Callable[[Any], None]) -> None:
        """Give what was saved to `use`, if there is any. `use` raises LookupError, TypeError, ValueError or
        AttributeError for anything it cannot have saved, before it keeps any part; that is logged."""
        if self._path is None:
            return
        try:
            if self._path.stat().st_size > self._most_bytes:
                raise ValueError("it is too large")
            use(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return
        except _UNUSABLE as error:
            logger.warning("could not use %s: %r; %s", self._path, error, self._lost)
