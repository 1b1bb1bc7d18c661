"""A JSON file in which a part of the agent keeps its state across restarts: whole, or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
"""By default."""


class StateFile:
    """The file; it and its directory may be missing.

    lost: what it means that the state is lost, for the log: "traces begin anew".
    """

    def __init__(self, path: Path, lost: str, *, most_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._lost = lost
        self._log_limit = LogLimit()

    def save(self, document: object) -> None:
        """Write the state. A failure is logged."""
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(document))
            temporary.replace(self._path)
        except OSError as error:
            if self._log_limit.allows("save"):
                logger.warning(
                    "could not write %s: %s; after a restart of the agent %s",
                    self._path,
                    error.strerror,
                    self._lost,
                )

    def load(self, use: Callable[[Any], None]) -> None:
        """Give what was saved to `use`, if there is any. `use` raises KeyError, TypeError, ValueError or
        AttributeError for anything that it cannot have saved; that is logged."""
        try:
            if self._path.stat().st_size > self._most_bytes:
                raise ValueError("it is too large")
            use(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("could not use %s: %r; %s", self._path, error, self._lost)
