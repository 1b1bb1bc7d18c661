"""The state of a rank, and what ended it: the kind of its exception, and what it left behind without words.

What is left behind lies in files that the training's user writes: they are untrusted. Those beside the box
are small and on the file system of the box. torchrun's are wherever the user wants them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.states import FailureKind, RankState
from rankwatch.conventions.vocabulary import Lifecycle
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX, KILLED_SUFFIX, TERMINATED_SUFFIX
from rankwatch.untrusted.chosen_paths import Answer, Wanted, read
from rankwatch.untrusted.folders import look, open_regular, read_owned
from rankwatch.untrusted.text import is_hidden, message_of, printable

_MOST_BYTES = 1 << 20
_MOST_PATH_BYTES = 4096
_MOST_OUTPUT_BYTES = 256 << 10
"""Bytes of what a rank has written to standard error, from its end."""
_OUTPUT = "stderr.log"
"""torchrun writes it beside the error file, if its `--redirects` or `--tee` say so."""
_NATIVE = "Aborted, in a thread that is not Python's"
_MOST_TIME = 1e11
_MESSAGE_SHOWN = 252
"""Characters of a message, as many as a black box holds."""
_ON_GPU = ("cuda out of memory", "hip out of memory", "cuda error: out of memory", "alloc_failed")
_ON_HOST = ("defaultcpuallocator", "cannot allocate memory", "std::bad_alloc")
_NOT_OF_NUMBERS = frozenset(
    ("KeyError", "ImportError", "ModuleNotFoundError", "AttributeError", "NameError", "FileNotFoundError")
)
"""Exceptions whose messages quote names, such as a column `nan`."""
_NON_FINITE = re.compile(
    r"\bnans?\b|\bnon-?finite\b|\b(?:not|isn't) finite\b"
    r"|(?:loss|grad\w*|norm)\b.{0,60}\binf(?:inity|inite|s)?\b|\binf(?:inity|inite|s)?\b.{0,60}(?:loss|grad|norm)",
    re.IGNORECASE,
)
_OF_COLLECTIVES = frozenset(("DistBackendError", "DistNetworkError", "DistStoreError"))
_PEER_GONE = re.compile(
    r"connection (?:closed|reset) by peer|nccl error|ncclremoteerror|remote process exited|heartbeat timeout"
    r"|\bgloo\b.{0,200}(?:timed out|connection|peer)|timed out waiting \d+ms for (?:send|recv)",
    re.IGNORECASE | re.DOTALL,
)
_WATCHDOG = re.compile(
    r"(Watchdog caught collective operation timeout: .{0,400}"
    r"|ProcessGroupNCCL's watchdog got stuck for .{0,200}"
    r"|Received a dump signal due to a collective timeout.{0,200})"
)
"""Messages that PyTorch's watchdog of NCCL and its heartbeat monitor write before they end the process."""
_THROWN = re.compile(r"^ *what\(\): +(.{1,400})", re.MULTILINE)
"""The C++ exception that nobody caught."""
_FRAME = re.compile(r'^ *File "([^"\n]{1,300})", line (\d{1,9}), in (\S{1,100})', re.MULTILINE)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: |$)")
_FATAL = re.compile(r"^Fatal Python error: ([A-Za-z -]{1,60})", re.MULTILINE)
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""How faulthandler calls them."""
KILLED = "SIGKILL"
_SIGNAL_NAMES = frozenset((*_SIGNALS.values(), "signal", KILLED))


class Failure(NamedTuple):
    """Why a rank failed."""

    exception: str
    """Type of the exception, or name of the signal."""
    kind: FailureKind
    message: str = ""
    place: str = ""
    """The innermost line of its traceback, such as `train.py:42 in step`; empty where it is unknown."""
    wall: float | None = None
    """Unix time of the failure, where it is told."""

    @property
    def by_signal(self) -> bool:
        """A signal ended the process, and not an exception of Python."""
        return self.exception in _SIGNAL_NAMES

    @property
    def by_watchdog_or_library(self) -> bool:
        """SIGABRT of a thread without Python code: the watchdog's, or another library's."""
        return self.kind is FailureKind.CRASH and self.message == _NATIVE


def kind_of(exception: str, message: str) -> FailureKind:
    """Return the kind of a failure by the type and the message of its exception."""
    lowered = message.lower()
    if exception == "SystemExit":
        return FailureKind.EXIT_STATUS
    if exception == "OutOfMemoryError" or any(each in lowered for each in _ON_GPU):
        return FailureKind.GPU_OUT_OF_MEMORY
    if exception == "MemoryError" or any(each in lowered for each in _ON_HOST):
        return FailureKind.HOST_OUT_OF_MEMORY
    if _WATCHDOG.search(message):
        return FailureKind.WATCHDOG_ABORT
    if exception in _OF_COLLECTIVES or _PEER_GONE.search(message):
        return FailureKind.COLLECTIVE
    if exception == "FloatingPointError" or (
        exception not in _NOT_OF_NUMBERS and _NON_FINITE.search(message)
    ):
        return FailureKind.NON_FINITE
    return FailureKind.EXCEPTION


Find = Callable[[Path, int, Sequence[Wanted]], Sequence[Answer] | None]
"""Reads files at paths that the user of a box chose: called with the box, the user's id and what is wanted.
Returns None while the answers are not known."""


def find_now(_box: Path, owner: int, wanted: Sequence[Wanted]) -> Sequence[Answer]:
    """Read them at once, for commands, which a file server that is gone may hold up."""
    return [read(each, owner) for each in wanted]


class TorchrunFiles(NamedTuple):
    """What torchrun has kept of a rank's end, in files at a path that the user chose."""

    error: Answer = None
    """The error file: of the rank's own exception."""
    output: Answer = None
    """The end of what the rank wrote to standard error, where torchrun keeps it in a file."""


def torchrun_paths(box: Path, owner: int) -> tuple[Wanted, ...]:
    """Return the files of `TorchrunFiles` for the rank of a box; none where it was not started by torchrun.

    owner: user id of the box. A file of somebody else does not count, so that no rank makes the agent read
        what its user may not read.
    """
    try:
        target = os.fsdecode(read_owned(box.with_suffix(ERROR_FILE_SUFFIX), owner, _MOST_PATH_BYTES))
    except OSError:
        return ()
    if not target.startswith("/"):
        return ()
    output = f"{target.rpartition('/')[0]}/{_OUTPUT}"
    return Wanted(target, _MOST_BYTES), Wanted(output, _MOST_OUTPUT_BYTES, from_end=True)


def left_behind(box: Path, owner: int, files: TorchrunFiles) -> Failure | None:
    """Return what a dead rank left about its end, in torchrun's files and beside its box; None for
    nothing."""
    try:
        told = _torchrun_error(files.error) or _told(
            _crash(box.with_suffix(CRASHED_SUFFIX), owner), files.output
        )
        if told is None:
            return _kill(box.with_suffix(KILLED_SUFFIX), owner)
    except (OSError, ValueError, RecursionError):
        return None
    if _is_private(box):
        told = told._replace(message=told.message if told.by_watchdog_or_library else "", place="")
    return told


def _is_private(box: Path) -> bool:
    """Return True if the rank's umask hides from others what it writes, as it does the pointer to its
    files."""
    return is_hidden(box.with_suffix(ERROR_FILE_SUFFIX))


def told_by_error_file(box: Path, files: TorchrunFiles, failure: Failure) -> Failure:
    """Return the failure with line and time as in torchrun's error file, if that is about the same."""
    try:
        told = _torchrun_error(files.error)
    except (ValueError, RecursionError):
        return failure
    if told is None or told.exception != failure.exception:
        return failure
    return failure._replace(place="" if _is_private(box) else told.place, wall=told.wall)


def crash_in(copy: Path) -> Failure | None:
    """Return the crash that a file of faulthandler, or a copy of one, shows; None for none."""
    try:
        return _crash(copy, copy.lstat().st_uid)
    except OSError:
        return None


def _crash(path: Path, owner: int) -> Failure | None:
    """Return the crash by what faulthandler wrote, and when it wrote that. Raises OSError."""
    try:
        raw, changed = _beginning(path, owner, _MOST_OUTPUT_BYTES)
    except FileNotFoundError:
        return None
    text = raw.decode("utf-8", "replace")
    crash = _crash_by(text) if _FATAL.match(text) else None
    return crash if crash is None else crash._replace(wall=changed)


def _crash_by(text: str) -> Failure | None:
    """Return the last crash that a text tells of."""
    crashes = list(_FATAL.finditer(text))
    if not crashes:
        return None
    found = crashes[-1]
    name = found[1].strip()
    signal = _SIGNALS.get(name, "signal")
    if signal == "SIGABRT" and not _by_python(text[found.start() :]):
        name = _NATIVE
    return Failure(signal, FailureKind.CRASH, name)


def _told(crash: Failure | None, output: Answer) -> Failure | None:
    """Return the crash with what standard error tells of it.

    A script below torchrun's `record` has its stacks written there, too, and not beside its box.
    """
    if output is None:
        return crash
    text, wall = output.content.decode("utf-8", "replace"), output.changed
    found = crash or _crash_by(text)
    if found is None:
        return None
    found = found if found.wall is not None else found._replace(wall=wall)
    if (watchdog := _last(_WATCHDOG, text)) is not None:
        return found._replace(kind=FailureKind.WATCHDOG_ABORT, message=message_of(watchdog)[:_MESSAGE_SHOWN])
    if (thrown := _last(_THROWN, text)) is not None:
        known = kind_of("", thrown)
        kind = known if known is not FailureKind.EXCEPTION else FailureKind.CRASH
        return found._replace(kind=kind, message=message_of(thrown)[:_MESSAGE_SHOWN])
    return found


def _kill(path: Path, owner: int) -> Failure | None:
    """Return the kernel's line that the agent has kept, about a kill for lack of memory."""
    try:
        line = printable(_beginning(path, owner, _MESSAGE_SHOWN)[0].decode("utf-8", "replace"))
    except FileNotFoundError:
        return None
    return Failure(KILLED, FailureKind.HOST_OUT_OF_MEMORY, line) if line else None


def _by_python(stacks: str) -> bool:
    """Return False if all Python threads are listed and none of them is the one that received the signal."""
    return "Current thread" in stacks or "Thread 0x" not in stacks


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.findall(text)
    return found[-1] if found else None


def _torchrun_error(found: Answer) -> Failure | None:
    """Return the error that torchrun's `record` has written: of the rank's own exception, with its message.

    `message` is a text, or an object with `message` and `extraInfo`. torch's own reader takes the time from
    beside a text and from `extraInfo` of an object.
    """
    parsed = json.loads(found.content) if found is not None and found.content else {}
    told = parsed.get("message") if isinstance(parsed, dict) else None
    extra = told.get("extraInfo") if isinstance(told, dict) else parsed
    text = told.get("message") if isinstance(told, dict) else told
    if not isinstance(text, str) or not text:
        return None
    named = _EXCEPTION.match(text)
    exception = named[1] if named else "exception"
    message = message_of(text[named.end() :] if named else text)[:_MESSAGE_SHOWN]
    place, wall = _place_and_time(extra)
    return Failure(exception[:64], kind_of(exception, message), message, place, wall)


def _place_and_time(extra: object) -> tuple[str, float | None]:
    """Return the innermost line of the traceback, and when the error was written."""
    if not isinstance(extra, dict):
        return "", None
    stack = extra.get("py_callstack")
    frames = _FRAME.findall(stack) if isinstance(stack, str) else []
    place = ""
    if frames:
        file, line, function = frames[-1]
        place = printable(f"{file.rpartition('/')[2]}:{line} in {function}")[:_MESSAGE_SHOWN]
    try:
        wall = float(extra.get("timestamp", "nan"))
    except (TypeError, ValueError, OverflowError):
        wall = math.nan
    return place, wall if 0.0 < wall < _MOST_TIME else None


def _beginning(path: Path, owner: int, most: int) -> tuple[bytes, float]:
    """Return the beginning of a file of this user, and the Unix time of its last change. Raises OSError."""
    file = open_regular(path, owner=owner)
    try:
        return os.pread(file, most, 0), os.fstat(file).st_mtime
    finally:
        os.close(file)


_STATE_OF = {
    Lifecycle.FINISHED: RankState.FINISHED,
    Lifecycle.FAILED: RankState.FAILED,
    Lifecycle.INTERRUPTED: RankState.INTERRUPTED,
    Lifecycle.PREEMPTED: RankState.PREEMPTED,
    Lifecycle.EXITED: RankState.EXITED,
}


def rank_state(path: Path, ended_by: str, *, alive: bool, stepped: bool) -> RankState:
    """Return the state of the rank whose box this is.

    ended_by: the lifecycle event that ended it; empty, or anything else, where there is none.
    alive: a process holds the lock of the box.
    """
    if ended_by in _STATE_OF:
        return _STATE_OF[Lifecycle(ended_by)]
    if alive:
        return RankState.RUNNING if stepped else RankState.STARTING
    return RankState.TERMINATED if _wrote_stacks(path) else RankState.LOST


_WORST_FIRST = (
    RankState.LOST,
    RankState.FAILED,
    RankState.INTERRUPTED,
    RankState.PREEMPTED,
    RankState.TERMINATED,
    RankState.RUNNING,
    RankState.STARTING,
    RankState.EXITED,
    RankState.FINISHED,
)


def worst_state(states: Collection[RankState]) -> RankState:
    """Return the state of ranks taken together: the one that most needs a look."""
    return next(each for each in _WORST_FIRST if each in states)


def _wrote_stacks(path: Path) -> bool:
    try:
        return look(path.with_suffix(TERMINATED_SUFFIX)).st_size > 0
    except OSError:
        return False
