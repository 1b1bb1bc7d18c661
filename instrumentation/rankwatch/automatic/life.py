"""How a process ends that does not say so itself: an exception, an exit status, or the end of the script.

The end is recorded at the moment at which it is known. What comes afterwards, such as handlers of other
libraries that wait for the network, may take long, or end the process at once.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rankwatch.automatic.patching import watch
from rankwatch.conventions import Capability
from rankwatch.failures import Ending, ending_by
from rankwatch.run import Run

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def follow(run: Run) -> None:
    """Record the end of this process as the end of the run."""
    run.sees(Capability.EXIT_CAUSE)
    _chain_excepthook(run)
    exits = _Exits(run)
    watched = [watch(sys, "exit", began=exits.asked, also=("__main__",))]
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":  # not with `python -S`
        watched.append(watch(quitter, "__call__", began=exits.asked_by_builtin))
    for each in filter(None, watched):
        run.when_ended(each.undo)
    run.end_of_script = exits.ending
    run.after_steps(exits.stepped)
    _chain_threading_excepthook(run, exits)


def _chain_excepthook(run: Run) -> None:
    """Record the exception first, and let the hook that was there print it."""
    before: ExceptHook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        run.exited(error)
        before(kind, error, trace)

    def restore() -> None:
        if sys.excepthook is hook:
            sys.excepthook = before

    sys.excepthook = hook
    run.when_ended(restore)


def _chain_threading_excepthook(run: Run, exits: _Exits) -> None:
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        exits.thread_ended(ended.exc_value)
        before(ended)

    def restore() -> None:
        if threading.excepthook is hook:
            threading.excepthook = before

    threading.excepthook = hook
    run.when_ended(restore)


class _Exits:
    """Remembers what ends the script, unless it goes on: a later step shows that it did.

    `sys.exit`, `exit` and `quit` only raise SystemExit, which the script may catch. An exception in another
    thread ends that thread; if it is the one that trains, the script has nothing more to do.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last: tuple[int, Ending | None] | None = None
        """Number of steps at that moment, and the end."""
        self._training_thread = 0

    def stepped(self) -> None:
        """Called after each step."""
        self._training_thread = threading.get_ident()

    def thread_ended(self, error: BaseException | None) -> None:
        """Called with the exception that has ended a thread other than the main one."""
        trains = threading.get_ident() == self._training_thread
        if trains and error is not None and not isinstance(error, SystemExit):
            self._last = self._run.steps_completed, ending_by(error)

    def asked(self, status: object = None, *rest: object) -> None:
        """Called with the arguments of `sys.exit`. In another thread it only ends that thread."""
        if threading.current_thread() is threading.main_thread():
            end = None if status in (None, 0) else ending_by(SystemExit(status))
            self._last = self._run.steps_completed, end

    def asked_by_builtin(self, quitter: object, status: object = None, *rest: object) -> None:
        """Called with the arguments of the builtins `exit` and `quit`."""
        self.asked(status)

    def ending(self) -> Ending | None:
        """What ends the run; None if the script has come to its end."""
        if self._last is None or self._last[0] != self._run.steps_completed:
            return None
        return self._last[1]
