"""What rank 0 prints: one line at the start, and a card of what the run did when its process exits.

The card is made by a process of its own, from the black boxes of this node. The training process only waits
for it at its very end, for a few seconds at most. Where Python runs no exit handlers (SIGKILL, `os._exit`,
and SIGTERM without a handler of the trainer), there is no card; `rankwatch summary` prints the same later.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rankwatch.conventions import environment
from rankwatch.processes import python
from rankwatch.untrusted.text import last_argument, printable
from rankwatch.variables import is_on

DEADLINE_SECONDS = 5.0
"""Longest time that the card may delay the exit of the process."""
_STDERR = 2


def announce(directory: Path, env: Mapping[str, str]) -> None:
    """Say where a run records and how to look at it. directory: of the black boxes of the run."""
    if not is_on(environment.SUMMARY, env):
        return
    base = Path(env.get(environment.DIRECTORY) or environment.DEFAULT_DIRECTORY)
    name = last_argument(directory.name if directory.parent == base else os.fspath(directory))
    line = f"rankwatch: records in {directory}; look with `rankwatch diagnose run {name}`"
    if sys.stderr is not None:  # else `print` would take standard output
        print(printable(line), file=sys.stderr, flush=True)


def print_at_exit(directory: Callable[[], Path | None], env: Mapping[str, str]) -> None:
    """Print the card when the process exits. A process that starts several runs prints that of the last.

    directory: returns that of the run's black boxes, None if this process prints no card.
    """
    if is_on(environment.SUMMARY, env):
        atexit.unregister(_print_card)
        atexit.register(_print_card, directory, os.getpid())


def _print_card(of_run: Callable[[], Path | None], pid: int) -> None:
    directory = of_run()
    if directory is None or pid != os.getpid() or not sys.executable:
        return  # not rank 0; a forked child is not the rank either
    try:
        subprocess.run(
            [*_interpreter(os.environ), "-m", "rankwatch_cli", "summary", os.fspath(directory)],
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 - the process exits, with a card or without
        return


def _interpreter(env: Mapping[str, str]) -> list[str]:
    """That of `rankwatch run`, which has the command. It gets no path that is meant for the training."""
    of_command = env.get(environment.PYTHON, "")
    if of_command in ("", sys.executable) or not Path(of_command).exists():
        return python()
    return [of_command, "-I"]


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """One thread is enough for NumPy: the node may still train."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**env, **threads, environment.DISABLE: "1"}
