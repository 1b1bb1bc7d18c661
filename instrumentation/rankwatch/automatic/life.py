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


class _Exits:
    """Remembers the exit status that the script asks for.

    `sys.exit`, `exit` and `quit` only raise SystemExit, which the script may catch; a later step shows that
    it went on.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked: tuple[int, object] | None = None

    def asked(self, status: object = None, *rest: object) -> None:
        """Called with the arguments of `sys.exit`. In another thread it only ends that thread."""
        if threading.current_thread() is threading.main_thread():
            self._asked = (self._run.steps_completed, status)

    def asked_by_builtin(self, quitter: object, status: object = None, *rest: object) -> None:
        """Called with the arguments of the builtins `exit` and `quit`."""
        self.asked(status)

    def ending(self) -> SystemExit | None:
        """The SystemExit that ends the run; None if the script has come to its end."""
        if self._asked is None or self._asked[0] != self._run.steps_completed:
            return None
        status = self._asked[1]
        return None if status in (None, 0) else SystemExit(status)
