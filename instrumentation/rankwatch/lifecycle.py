"""The end of a process, by itself or by a signal, its forked children, and what rank 0 prints.

That is one line at the start, and a card of what the run did when the process exits. The card is made by a
process of its own, from the black boxes of this node. The training process only waits for it at its very
end, for a few seconds at most. Where Python runs no exit handlers (SIGKILL, `os._exit`, and SIGTERM without a
handler of the trainer), there is no card; `rankwatch summary` prints the same later.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import subprocess  # here: imported at the exit, it makes Python forget that Ctrl-C ended the program
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from rankwatch.conventions import environment
from rankwatch.processes import python
from rankwatch.untrusted.folders import Folder
from rankwatch.untrusted.text import last_argument, printable
from rankwatch.variables import is_on

TERMINATED_SUFFIX = ".terminated"
"""File beside the black box that receives every thread's stack when SIGTERM arrives."""
CRASHED_SUFFIX = ".crashed"
"""The same for a signal of an error that ends the process: SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL."""
ERROR_FILE_SUFFIX = ".error_file"
"""File beside the black box with the path of the file into which torchrun has the rank write its error."""
KILLED_SUFFIX = ".killed"
"""File beside the black box in which the agent keeps the kernel's line about a kill for lack of memory."""
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_LONGEST_PATH = 4096
_open_files: list[object] = []
"""Files that faulthandler may still write to."""
DEADLINE_SECONDS = 5.0
"""Longest time that the card may delay the exit of the process."""
_STDERR = 2


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
    """Writes the stacks of all threads to a new file when SIGTERM arrives. Then the signal acts as before.

    faulthandler's handler is in C: it runs while Python hangs in a collective, and then ends the process or
    calls the handler that it replaced. Without it, the ranks that torchrun terminates after one has died
    would look as dead as that one."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        folder.remove(name)  # a run that was started before in this process may still have it open
        self._file = os.fdopen(folder.create(name), "w")
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
            if opened.st_size == 0 and os.path.samestat(opened, self._folder.status_of(self._name)):
                self._folder.remove(self._name)


class StacksOnCrash:
    """Writes the stacks of all threads to a new file when a signal ends the process because of an error.

    It does nothing where faulthandler is on already. A script that turns it on later gets the stacks.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        folder.remove(name)
        self._file = None if faulthandler.is_enabled() else os.fdopen(folder.create(name), "w")
        if self._file is not None:
            faulthandler.enable(file=self._file, all_threads=True)

    def release(self) -> None:
        """Write nothing any more, also in a forked child, whose crash is not the rank's.

        The descriptor stays open, because faulthandler keeps its number.
        """
        if self._file is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._file.fileno(), inheritable=False)
            os.close(nowhere)

    def close(self) -> None:
        """Close the file of a run that has ended without a crash."""
        if self._file is not None:
            self.release()
            _open_files.append(self._file)
            self._folder.remove(self._name)


def note_error_file(folder: Folder, name: str, env: Mapping[str, str]) -> None:
    """Leave beside the box the path of torchrun's error file, for those who ask after the end of the rank."""
    error_file = env.get(_ERROR_FILE, "")
    if error_file and len(error_file) < _LONGEST_PATH:
        folder.write(name, os.fsencode(error_file))
    else:
        folder.remove(name)


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
    """Return that of `rankwatch run`, which has the command. It gets no path meant for the training."""
    of_command = env.get(environment.PYTHON, "")
    if of_command in ("", sys.executable) or not Path(of_command).exists():
        return python()
    return [of_command, "-I"]


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with one thread for NumPy, which is enough: the node may still train."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**env, **threads, environment.DISABLE: "1"}
