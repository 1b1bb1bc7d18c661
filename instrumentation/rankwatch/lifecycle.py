"""The last words of a process: its end in order, its end by SIGTERM, and its forked children."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

TERMINATED_SUFFIX = ".terminated"
"""File beside the black box that receives every thread's stack when SIGTERM arrives."""


def on_exit(farewell: Callable[[type[BaseException] | None], None]) -> Callable[[], None]:
    """Call `farewell` when the interpreter ends, with the type of the exception that ended it, if one did.

    Returns a call that takes this back.
    """

    def leave() -> None:
        farewell(getattr(sys, "last_type", None))

    atexit.register(leave)
    return lambda: atexit.unregister(leave)


def on_fork(silence: Callable[[], None]) -> None:
    """Call `silence` in every child that is forked from now on: it is not the rank."""
    os.register_at_fork(after_in_child=silence)


class StacksOnSigterm:
    """Has the stacks of all threads written to `path` when SIGTERM arrives, then lets it do its work.

    faulthandler's handler is C: it runs while Python hangs in a collective, and ends the process (or
    calls the handler that was there) just as before. Without it every rank that torchrun terminates
    after one has died would look as dead as that one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w")
        faulthandler.register(signal.SIGTERM, file=self._file, all_threads=True, chain=True)

    def close(self) -> None:
        """Take the handler back; a file that SIGTERM never wrote to is removed."""
        faulthandler.unregister(signal.SIGTERM)
        self._file.close()
        if self._path.stat().st_size == 0:
            self._path.unlink()
