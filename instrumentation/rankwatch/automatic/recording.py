"""The run of zero-code recording. The first event of training opens it; helper scripts leave no file.

A run that the script itself starts wins: zero-code recording then stands down in this process, unless the
script adds the callback of a framework.

A process that does not say how it ends does so by an exception, an exit status, or the end of the script. The
end is recorded at the moment at which it is known: what comes afterwards, such as handlers of other libraries
that wait for the network, may take long, or end the process at once.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
import threading
import weakref
from types import ModuleType, TracebackType
from typing import Any

from rankwatch.automatic.checkpoints import checkpoints
from rankwatch.automatic.patching import note_displaced, watch
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import Capability
from rankwatch.disabled import DisabledRun
from rankwatch.failures import Ending, ending_by
from rankwatch.launchers import RANK_VARIABLES
from rankwatch.run import Run
from rankwatch.starting import run_of_script, start_automatically

_STEPS_BEFORE = 20
"""Steps after which rank 0 says what is not visible. By then each hook has had its chance."""
_PLACE = (*RANK_VARIABLES, "LOCAL_RANK", "NODE_RANK")
"""Variables that tell the processes of a job apart; a process that a rank starts has the same values."""

_run: Run | DisabledRun | None = None
_replicas: list[weakref.ref[Any]] = []
"""Models that are replicated, in the order in which they were wrapped, which is the same on all ranks."""
_MOST_REPLICAS = 8


def opened() -> Run | DisabledRun:
    """Return the run of this process; the first call opens it. It is a `DisabledRun` where nothing is
    recorded: in a helper, after the end of the run, and as soon as the script itself has started one."""
    global _run
    if _run is None:
        _run = start_automatically()
        if isinstance(_run, Run):
            _accompany(_run)
    return _run


def join_script() -> bool:
    """Record into the run that the script itself has started, because the script asks for it. True if that is
    new. The script ends the run."""
    global _run
    run = run_of_script()
    if run is None or run is _run:
        return False
    _run = run
    visibility.attach(run)
    checkpoints.attach(run)
    run.after_steps(functools.partial(_fingerprint, run))
    run.when_ended(_ended)
    return True


def is_open() -> bool:
    """Return True once the run was opened, also where nothing is recorded."""
    return _run is not None


def _accompany(run: Run) -> None:
    os.environ[environment.RANK_PROCESS] = f"{os.getpid()}:{_place()}"
    visibility.attach(run)
    checkpoints.attach(run)
    _follow_exit(run)
    run.after_steps(functools.partial(_fingerprint, run))
    run.after_steps(_Count().stepped)
    run.when_ended(_ended)


def _place() -> str:
    return ",".join(os.environ.get(name, "") for name in _PLACE)


class _Count:
    """Counts steps until it is time to say what is not visible."""

    def __init__(self) -> None:
        self._steps = 0

    def stepped(self) -> None:
        """Count a step, and say after the first ones what is recorded."""
        self._steps += 1
        if self._steps == _STEPS_BEFORE:
            _say()


def _say() -> None:
    note_displaced()
    visibility.missing()
    visibility.say()


def _ended() -> None:
    global _run
    _run = DisabledRun()
    _say()


# -- how the process ends ----------------------------------------------------------------------------------


def _follow_exit(run: Run) -> None:
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
    before = sys.excepthook

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
        """Note the thread of each step: it trains."""
        self._training_thread = threading.get_ident()

    def thread_ended(self, error: BaseException | None) -> None:
        """Note the exception that has ended a thread other than the main one."""
        trains = threading.get_ident() == self._training_thread
        if trains and error is not None and not isinstance(error, SystemExit):
            self._last = self._run.steps_completed, ending_by(error)

    def asked(self, status: object = None, *rest: object) -> None:
        """Note the arguments of `sys.exit`. In another thread it only ends that thread."""
        if threading.current_thread() is threading.main_thread():
            end = None if status in (None, 0) else ending_by(SystemExit(status))
            self._last = self._run.steps_completed, end

    def asked_by_builtin(self, quitter: object, status: object = None, *rest: object) -> None:
        """Note the arguments of the builtins `exit` and `quit`."""
        self.asked(status)

    def ending(self) -> Ending | None:
        """Return what ends the run; None if the script has come to its end."""
        if self._last is None or self._last[0] != self._run.steps_completed:
            return None
        return self._last[1]


# -- models that DistributedDataParallel replicates ---------------------------------------------------------


def patch_replicas(module: ModuleType) -> None:
    """Watch which models DistributedDataParallel replicates: their fingerprint is taken after each step."""
    watch(module.DistributedDataParallel, "__init__", began=_replicated, shows=Capability.REPLICAS)


def _replicated(replica: Any, /, *args: Any, **kwargs: Any) -> None:
    if all(each() is not replica for each in _replicas):
        _replicas.append(weakref.ref(replica))
    del _replicas[:-_MOST_REPLICAS]


def _fingerprint(run: Run) -> None:
    """Read the parameters of the models that are replicated, after a step."""
    fingerprints = run.fingerprints
    if _replicas and fingerprints is not None and fingerprints.is_due() and not run._steps.open:
        fingerprints.of([module for each in _replicas if (module := each()) is not None])
