"""The run of zero-code recording. The first event of training opens it; helper scripts leave no file.

A run that the script itself starts wins: zero-code recording then stands down in this process, unless the
script adds the callback of a framework.
"""

from __future__ import annotations

import functools
import os

from rankwatch.automatic import life
from rankwatch.automatic.checkpoints import checkpoints
from rankwatch.automatic.patching import note_displaced
from rankwatch.automatic.seams import replicas
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions import environment
from rankwatch.disabled import DisabledRun
from rankwatch.launchers import RANK_VARIABLES
from rankwatch.run import Run
from rankwatch.starting import run_of_script, start_automatically

_STEPS_BEFORE = 20
"""Steps after which rank 0 says what is not visible. By then each hook has had its chance."""
_PLACE = (*RANK_VARIABLES, "LOCAL_RANK", "NODE_RANK")
"""What tells the processes of a job apart; a process that a rank starts has the same values."""

_run: Run | DisabledRun | None = None


def opened() -> Run | DisabledRun:
    """The run of this process; the first call opens it. It is a `DisabledRun` where nothing is recorded: in a
    helper, after the end of the run, and as soon as the script itself has started one."""
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
    run.after_steps(functools.partial(replicas.fingerprint, run))
    run.when_ended(_ended)
    return True


def is_open() -> bool:
    """True once the run was opened, also where nothing is recorded."""
    return _run is not None


def _accompany(run: Run) -> None:
    os.environ[environment.RANK_PROCESS] = f"{os.getpid()}:{_place()}"
    visibility.attach(run)
    checkpoints.attach(run)
    life.follow(run)
    run.after_steps(functools.partial(replicas.fingerprint, run))
    run.after_steps(_Count().stepped)
    run.when_ended(_ended)


def _place() -> str:
    return ",".join(os.environ.get(name, "") for name in _PLACE)


class _Count:
    """Counts steps until it is time to say what is not visible."""

    def __init__(self) -> None:
        self._steps = 0

    def stepped(self) -> None:
        """Called after each step."""
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
