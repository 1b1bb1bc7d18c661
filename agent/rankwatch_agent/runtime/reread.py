"""Values of files that change while the agent runs: certificates, tokens, headers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from rankwatch_agent.runtime.errors import UserError

logger = logging.getLogger(__name__)

Value = TypeVar("Value")
_Signature = tuple[tuple[int, int, int, int] | None, ...]


class Reread(Generic[Value]):
    """The value that `load` reads from files, read again when they change. Safe for several threads.

    Kubernetes updates a secret by swapping a symbolic link, so a change is one of the file behind the path.
    `load` raises UserError for files that cannot be used: the constructor passes the error on; later the
    previous value stays in use, and the log reports it once per change.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], Value]) -> None:
        self._paths = paths
        self._load = load
        self._lock = threading.Lock()
        # Before loading, so that a change in between is noticed next time.
        self._signature = _signature(paths)
        self._value = load()

    def current(self) -> Value:
        """The value of the files now, or of their last usable version."""
        with self._lock:
            signature = _signature(self._paths)
            if signature != self._signature:
                self._signature = signature
                self._renew()
            return self._value

    def _renew(self) -> None:
        try:
            self._value = self._load()
        except UserError as error:
            logger.warning("%s; the previous version stays in use", error)
        else:
            logger.info("%s changed; the new version is in use", ", ".join(map(str, self._paths)))


def _signature(paths: Sequence[Path]) -> _Signature:
    return tuple(map(_file_signature, paths))


def _file_signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
