"""The place of a box, `<directory>/<run>/<rank>.blackbox`: who may take it, and how.

A box is created under a hidden name in the directory and gets its place by a link, which fails if the place
is taken. Only the box of a writer that has ended gives way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rankwatch.blackbox import kept
from rankwatch.errors import BlackBoxError

HIDDEN_SUFFIX = ".starting"
"""Suffix of a box whose rank is not known yet. A leading dot hides it too."""
_TRIES = 8
"""Attempts to take a place while other processes remove its directory or its old box; a few microseconds
each."""
_NOT_LOCKED_YET_SECONDS = 60.0
"""Age from which a hidden box without a lock is nobody's: its writer locks it at once."""
_NAMES = 8
"""Names that are tried for the directory of a run."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def create_hidden(directory: Path) -> tuple[int, Path]:
    """Create a file without a place; its descriptor and its path. Raises OSError."""
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o1777)  # shared by all users, like /tmp
    file, name = tempfile.mkstemp(prefix=".", suffix=HIDDEN_SUFFIX, dir=directory)
    os.fchmod(file, 0o644)  # independent of the umask, because the agent is another user
    return file, Path(name)


def remove_abandoned(directory: Path) -> None:
    """Remove the boxes of this user's processes that were killed before their rank was known."""
    for path in directory.glob(f".*{HIDDEN_SUFFIX}"):
        try:
            if path.lstat().st_mtime > time.time() - _NOT_LOCKED_YET_SECONDS:
                continue
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer holds the lock while it lives
            path.unlink()
        except OSError:
            continue
        finally:
            os.close(file)


def take(hidden: Path, path: Path) -> None:
    """Move a box to its place. Raises BlackBoxError if a living process holds the place, and OSError."""
    for _ in range(_TRIES):
        try:
            _make_run_directory(path.parent)
            os.link(hidden, path)
        except FileNotFoundError:
            continue  # a sweep has removed the empty directory; a resumed run may meet that
        except FileExistsError:
            if not _replace_ended(hidden, path):
                continue
            return
        hidden.unlink()
        return
    raise BlackBoxError(
        f"could not create black box {path}: its directory or its old box changes all the time"
    )


def _replace_ended(hidden: Path, path: Path) -> bool:
    """Put the box where one of an ended writer is. False if another process was faster.

    The lock on the old box serialises processes that want the same place. Its writer holds it while it lives,
    and the kernel drops it when the process dies, so neither a new process with the same pid nor another PID
    namespace can mislead.
    """
    try:
        old = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        try:
            fcntl.lockf(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise BlackBoxError(
                f"a process that still runs already records rank {path.stem} of run {path.parent.name!r} "
                f"({path}); give each process its own rank, or the runs different names by RANKWATCH_RUN"
            ) from None
        try:
            if not os.path.samestat(os.fstat(old), path.lstat()):
                return False
        except FileNotFoundError:
            return False
        kept.keep(path, old)
        hidden.replace(path)
    finally:
        os.close(old)
    return True


def own_run(directory: Path, run: str) -> str:
    """Return the name under which this user can record the run: its own, unless its directory is another's.

    All ranks of a node find the same name, because they see the same directories. Raises BlackBoxError.
    """
    for name in _names_of(run, os.geteuid()):
        if _is_ours(directory / name):
            return name
    raise BlackBoxError(f"could not create black box {directory / run}: other users own all of its names")


def _names_of(run: str, uid: int) -> Iterator[str]:
    yield run
    yield f"{run}-uid{uid}"
    for number in range(2, _NAMES):
        yield f"{run}-uid{uid}-{number}"


def _is_ours(path: Path) -> bool:
    """True if only this user can write into the directory. It is created if it does not exist."""
    try:
        _make_run_directory(path)
        status = path.lstat()
    except FileNotFoundError:
        return True  # removed by a sweep; `take` creates it again
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & _WRITABLE_BY_OTHERS
    )


def _make_run_directory(path: Path) -> None:
    """Create the directory if it does not exist, readable for the agent and never writable for others."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o755)
        path.chmod(0o755)
