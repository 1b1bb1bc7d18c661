"""The end of a process, by itself or by SIGTERM, and its forked children."""

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


def on_exit(record: Callable[[BaseException | None], None]) -> Callable[[], None]:
    """Call `record` when the interpreter exits, with the exception that ended it, if any.

    Returns a function that cancels this.
    """

    def exiting() -> None:
        record(getattr(sys, "last_value", None))

    atexit.register(exiting)
    return lambda: atexit.unregister(exiting)


def on_fork(silence: Callable[[], None]) -> None:
    """Call the method `silence` in every child that is forked from now on, because a child is not the rank.

    The method is held weakly: a fork hook cannot be removed, and must not keep a run alive that has ended.
    """
    method = weakref.WeakMethod(silence)

    def forked() -> None:
        call = method()
        if call is not None:
            call()

    os.register_at_fork(after_in_child=forked)


class StacksOnSigterm:
    """Writes the stacks of all threads to `path` when SIGTERM arrives, then lets the signal act as before.

    faulthandler's handler is in C: it runs while Python hangs in a collective, and then ends the process or
    calls the handler that it replaced. Without it, the ranks that torchrun terminates after one has died
    would look as dead as that one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)  # a run that was started before in this process may still have it open
        self._file = path.open("w")
        self._found = signal.getsignal(signal.SIGTERM)
        faulthandler.register(signal.SIGTERM, file=self._file, all_threads=True, chain=True)

    def release(self) -> None:
        """Remove the handler, also in a forked child, whose SIGTERM is not the rank's.

        If the trainer has installed a handler since, ours is gone already. Unregistering would then restore
        the handler before ours, and the trainer would miss SIGTERM.
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
