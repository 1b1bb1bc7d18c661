"""What ended a rank: the kind of its exception, and what it left behind if it could not say so itself.

What is left behind lies in files that the training's user writes: they are untrusted.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import FailureKind
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX
from rankwatch.settings import printable
from rankwatch_agent.runtime.untrusted import open_regular

_MOST_BYTES = 1 << 20
_MOST_PATH_BYTES = 4096
_MESSAGE_SHOWN = 252
"""Characters of a message, as many as a black box holds."""
_ON_GPU = ("cuda out of memory", "hip out of memory", "cuda error: out of memory", "alloc_failed")
_ON_HOST = ("defaultcpuallocator", "cannot allocate memory", "std::bad_alloc")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: |$)")
_FATAL = re.compile(r"Fatal Python error: ([A-Za-z -]{1,60})")
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""How faulthandler calls them."""


class Failure(NamedTuple):
    """Why a rank failed."""

    exception: str
    """Type of the exception, or name of the signal."""
    kind: FailureKind
    message: str = ""


def kind_of(exception: str, message: str) -> FailureKind:
    """The kind of a failure by the type and the message of its exception."""
    lowered = message.lower()
    if exception == "SystemExit":
        return FailureKind.EXIT_STATUS
    if exception == "OutOfMemoryError" or any(each in lowered for each in _ON_GPU):
        return FailureKind.GPU_OUT_OF_MEMORY
    if exception == "MemoryError" or any(each in lowered for each in _ON_HOST):
        return FailureKind.HOST_OUT_OF_MEMORY
    return FailureKind.EXCEPTION


def left_behind(box: Path, owner: int) -> Failure | None:
    """What a dead rank has left beside its box about its end; None for nothing.

    owner: user id of the box. A file of somebody else does not count, so that no rank makes the agent read
        what its user may not read.
    """
    try:
        return _torchrun_error(box.with_suffix(ERROR_FILE_SUFFIX), owner) or _crash(
            box.with_suffix(CRASHED_SUFFIX), owner
        )
    except (OSError, ValueError, RecursionError):
        return None


def crash_in(copy: Path) -> Failure | None:
    """The crash that a copy of such a file shows; None for none."""
    try:
        return _crash(copy, copy.lstat().st_uid)
    except (OSError, ValueError):
        return None


def _crash(path: Path, owner: int) -> Failure | None:
    found = _FATAL.match(_read(path, owner, _MOST_PATH_BYTES).decode("utf-8", "replace"))
    if found is None:
        return None
    text = found[1].strip()
    return Failure(_SIGNALS.get(text, "signal"), FailureKind.CRASH, text)


def _torchrun_error(pointer: Path, owner: int) -> Failure | None:
    """The error that torchrun's `record` has written: of the rank's own exception, with its message."""
    target = _read(pointer, owner, _MOST_PATH_BYTES)
    path = Path(os.fsdecode(target))
    if not path.is_absolute():
        return None
    raw = _read(path, owner, _MOST_BYTES)
    parsed = json.loads(raw) if raw else {}
    found = parsed.get("message") if isinstance(parsed, dict) else None
    text = found.get("message") if isinstance(found, dict) else found
    if not isinstance(text, str) or not text:
        return None
    named = _EXCEPTION.match(text)
    exception = named[1] if named else "exception"
    message = printable(" ".join((text[named.end() :] if named else text).split())[:_MESSAGE_SHOWN])
    return Failure(exception[:64], kind_of(exception, message), message)


def _read(path: Path, owner: int, most: int) -> bytes:
    """The beginning of a file of this user; empty where there is none. Raises OSError, ValueError."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return b""
    try:
        return os.read(file, most) if os.fstat(file).st_uid == owner else b""
    finally:
        os.close(file)
