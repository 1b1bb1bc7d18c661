"""The last words of a process: its end in order, its end by SIGTERM, and its forked children."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import weakref
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
    """Call `silence`, a method, in every child that is forked from now on: it is not the rank.

    Held weakly: a fork hook cannot be taken back, and must not keep a run that has ended.
    """
    method = weakref.WeakMethod(silence)

    def forked() -> None:
        call = method()
        if call is not None:
            call()

    os.register_at_fork(after_in_child=forked)


class StacksOnSigterm:
    """Has the stacks of all threads written to `path` when SIGTERM arrives, then lets it do its work.

    faulthandler's handler is C: it runs while Python hangs in a collective, and ends the process (or
    calls the handler that was there) just as before. Without it every rank that torchrun terminates
    after one has died would look as dead as that one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)  # a run that was started before in this process may still have it open
        self._file = path.open("w")
        self._found = signal.getsignal(signal.SIGTERM)
        faulthandler.register(signal.SIGTERM, file=self._file, all_threads=True, chain=True)

    def release(self) -> None:
        """Take the handler back: also in a forked child, whose SIGTERM is not the rank's.

        Where the trainer has set a handler since, ours is gone already; to unregister it would put
        back what was there before, and the trainer would no longer hear SIGTERM.
        """
        if signal.getsignal(signal.SIGTERM) == self._found:
            faulthandler.unregister(signal.SIGTERM)

    def close(self) -> None:
        """Take the handler back. Remove the file if SIGTERM never wrote to it and no later run owns it."""
        self.release()
        with self._file as file:
            opened = os.fstat(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if opened.st_size == 0 and os.path.samestat(opened, self._path.stat()):
                self._path.unlink()
