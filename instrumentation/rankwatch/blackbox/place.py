"""The place of a box, `<directory>/<run>/<rank>.blackbox`: who may take it, and how.

A box is created under a hidden name in the directory and gets its place by a link, which fails if the place
is taken. Only the box of a writer that has ended gives way. Nobody may write to a box but through the
descriptor with which its writer has created it, because whoever cuts a mapped file kills its process.

The file system may be small: a container has 64 MiB of /dev/shm by default, which the workers of data loaders
need. All ranks of a user together take at most a sixteenth of it, and at most a quarter of what is free.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import earlier_attempts, layout
from rankwatch.blackbox.earlier_attempts import MOST_OF_RANK
from rankwatch.errors import BlackBoxError
from rankwatch.logs.lines import FILE_BYTES
from rankwatch.untrusted.folders import Folder
from rankwatch.untrusted.peers import lock_holder

HIDDEN_SUFFIX = ".starting"
"""Suffix of a box whose rank is not known yet. A leading dot hides it too."""
_MODE = 0o444
"""Of a box, whatever the umask, because the agent is another user."""
_TRIES = 8
"""Attempts to take a place while other processes remove its directory or its old box; a few microseconds
each."""
_NOT_LOCKED_YET_SECONDS = 60.0
"""Age from which a hidden box without a lock is nobody's: its writer locks it at once."""
_MOMENT_NS = 100_000
_MOMENTS = 10**13
"""31 years: the longest name of a run leaves room for so many digits."""
_SETTLE_SECONDS = 0.05
"""Time for ranks that make a folder at the same moment to see each other's."""
_LOOK_SECONDS = 1.0
"""A user can make millions of names."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LOCK_SECONDS = 0.5
"""Longest wait for others that replace a box of the same run, which takes a millisecond."""
_BETWEEN_TRIES = 0.001
LEAST_CAPACITY = 1024
"""Records of the smallest ring: 64 steps of 16 records. Its box has 104 KiB, the usual one 1 MiB."""
_BESIDE_BYTES = 32 << 10
"""Of the small files beside a box, each of which takes a page."""
_SHARE_OF_ALL = 16
_SHARE_OF_FREE = 4
_MIB = 1 << 20
REMEDY = (
    "give the container more shared memory (`docker run --shm-size=1g`, in Kubernetes an emptyDir of medium "
    "Memory with a sizeLimit), or set RANKWATCH_DIR to another directory"
)
"""Things that a user can do about too little room."""


def open_directory(path: Path) -> Folder:
    """Return the directory of the black boxes, created for all users, like /tmp, if absent. Raises OSError.

    It may be a link of root or of this user. One of another user could lead anywhere.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        is_link = stat.S_ISLNK(status.st_mode)
        if is_link and status.st_uid not in (0, os.geteuid()):
            raise OSError(errno.ELOOP, f"it is a link of user {status.st_uid}, which could lead anywhere")
        return Folder.open(path, follow=is_link)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Folder.open(path.parent, follow=True) as parent:
        return parent.make(path.name, mode=0o1777)


def is_shared_by_tenants(boxes: Folder) -> bool:
    """Return True if other containers may use this directory, too, under the same user id: it is mounted by
    itself, and has the mode of a directory for all. False where it cannot be known."""
    return _is_for_all(boxes) and _is_mounted(boxes)


def distrust(boxes: Folder) -> str:
    """Return why other users could remove or replace what this user has in this folder; empty if they cannot.

    The own directory of a tenant is mounted, too, but has no sticky bit: so Kubernetes makes an emptyDir and
    a subPath. Nobody else is there.
    """
    return "" if not _is_for_all(boxes) and _is_mounted(boxes) else boxes.distrust()


def _is_for_all(boxes: Folder) -> bool:
    mode = boxes.status().st_mode
    return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)


def _is_mounted(boxes: Folder) -> bool:
    """Return True if a file system, or a part of one, is mounted at the directory."""
    with contextlib.suppress(OSError):
        above = os.open("..", os.O_PATH | os.O_CLOEXEC, dir_fd=boxes.fileno())
        try:
            return _mount_of(above) != _mount_of(boxes.fileno())
        finally:
            os.close(above)
    return False


def _mount_of(file: int) -> bytes:
    """Return the number of the mount on which an open file lies; empty where the kernel does not say it."""
    lines = Path(f"/proc/self/fdinfo/{file}").read_bytes().splitlines()
    return next((each for each in lines if each.startswith(b"mnt_id:")), b"")


def create_hidden(boxes: Folder) -> tuple[int, str]:
    """Create a file without a place, locked; its descriptor and its name. Raises OSError.

    Nobody else can open it before the lock is taken: who can may lock it first.
    """
    name = f".{os.urandom(8).hex()}{HIDDEN_SUFFIX}"
    file = boxes.create(name, mode=0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(file, _MODE)
    except BaseException:
        boxes.remove(name)
        os.close(file)
        raise
    return file, name


def remove_abandoned(boxes: Folder, names: Iterable[str]) -> None:
    """Remove, of these, the boxes of this user's processes that were killed before their rank was known."""
    for name in names:
        if not (name.startswith(".") and name.endswith(HIDDEN_SUFFIX)):
            continue
        with contextlib.suppress(OSError):  # another user's, or gone
            if boxes.status_of(name).st_mtime > time.time() - _NOT_LOCKED_YET_SECONDS:
                continue
            file = boxes.open_file(name, owner=os.geteuid())
            try:
                if lock_holder(file) is None:  # its writer holds the lock while it lives
                    boxes.remove(name)
            finally:
                os.close(file)


def take(boxes: Folder, hidden: str, run: Folder, rank: int, *, keeps_old: bool) -> Folder:
    """Move a box to its place in the folder of its run, which is opened again if a sweep has removed it.

    keeps_old: the box that it replaces is kept. Raises BlackBoxError if a living process holds the place, and
    OSError.
    """
    name = f"{rank}{layout.SUFFIX}"
    for _ in range(_TRIES):
        try:
            boxes.link(hidden, name, to=run)
        except FileNotFoundError:
            again = _if_ours(boxes, run.path.name)  # a resumed run may meet a sweep
            if again is None:
                break
            run = again
        except FileExistsError:
            if _replace_ended(boxes, hidden, run, rank, keeps_old=keeps_old):
                return run
        else:
            boxes.remove(hidden)
            return run
    raise BlackBoxError(
        f"could not create black box {run.path / name}: its directory or its old box changes all the time"
    )


def _replace_ended(boxes: Folder, hidden: str, run: Folder, rank: int, *, keeps_old: bool) -> bool:
    """Put the box where one of an ended writer is. False if another process was faster.

    The writer of a box holds a lock on it while it lives, and the kernel drops it when the process dies, so
    neither a new process with the same pid nor another PID namespace can mislead.
    """
    name = f"{rank}{layout.SUFFIX}"
    with _locked(run):
        try:
            old = run.open_file(name)
        except FileNotFoundError:
            return False
        try:
            if lock_holder(old) is not None:
                raise BlackBoxError(
                    f"a process that still runs already records rank {rank} of run {run.path.name!r} "
                    f"({run.path / name}); give each process its own rank, or the runs different names by "
                    "RANKWATCH_RUN"
                )
            if not os.path.samestat(os.fstat(old), run.status_of(name)):
                return False
            if keeps_old:
                earlier_attempts.keep(run, rank, old)
            boxes.rename(hidden, name, to=run)
        except FileNotFoundError:
            return False
        finally:
            os.close(old)
    return True


@contextlib.contextmanager
def _locked(run: Folder) -> Iterator[None]:
    """Keep other processes from replacing boxes of this run meanwhile.

    Any user can hold this lock, and some file systems have none. Then it is left out: of two processes that
    claim the same rank of a run, and start at the same moment, both may record.
    """
    end = time.monotonic() + _LOCK_SECONDS
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            try:
                fcntl.flock(run.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_BETWEEN_TRIES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(run.fileno(), fcntl.LOCK_UN)


def own_run(boxes: Folder, run: str) -> Folder:
    """Return the folder in which this user can record the run: that of its name, unless it is another's.

    Only this user can write into it. All ranks of a node find the same name, because they see the same
    folders. Raises BlackBoxError if there is none, and OSError.
    """
    for name in (run, f"{run}-uid{os.geteuid()}"):
        found = _if_ours(boxes, name)
        if found is not None:
            return found
    for name in _names_by_time(boxes, f"{run}-uid{os.geteuid()}-"):
        found = _if_ours(boxes, name)
        if found is not None:
            return found
    raise BlackBoxError(f"could not create black box {boxes.path / run}: other users own all of its names")


def _names_by_time(boxes: Folder, beginning: str) -> list[str]:
    """Return names that end in the moment at which this user has made them, the first of them first.

    Others may take all names that can be guessed. So the first rank makes a folder with the present moment,
    and the others find it.
    """
    found = _own_names(boxes, beginning)
    if found:
        return found
    made = f"{beginning}{time.time_ns() // _MOMENT_NS % _MOMENTS}"
    boxes.make(made).close()
    time.sleep(_SETTLE_SECONDS)
    return _own_names(boxes, beginning) or [made]


def _own_names(boxes: Folder, beginning: str) -> list[str]:
    """Return names of this user's folders with this beginning and a number, in the order of the numbers."""
    end = time.monotonic() + _LOOK_SECONDS
    found = []
    for name in takewhile(lambda _: time.monotonic() < end, boxes.names()):
        number = name.removeprefix(beginning)
        if number != name and number.isascii() and number.isdecimal():
            with contextlib.suppress(OSError):  # gone meanwhile
                if boxes.status_of(name).st_uid == os.geteuid():
                    found.append((int(number), name))
    return [name for _, name in sorted(found)]


def _if_ours(boxes: Folder, name: str) -> Folder | None:
    """Return the folder of this name, if it is this user's; created if it does not exist."""
    for _ in range(_TRIES):
        try:
            found = boxes.make(name)
        except FileNotFoundError:
            continue  # removed by a sweep, just after it was created
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                return None  # a file, a link, or a folder that we may not enter
            raise
        status = found.status()
        if status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS:
            return found
        found.close()
        return None
    raise FileNotFoundError(errno.ENOENT, f"{boxes.path} is gone")


class Room(NamedTuple):
    """What a rank may keep."""

    capacity: int
    """Records in its ring."""
    plenty: bool = True
    """False if it keeps neither boxes of earlier attempts nor its newest lines."""
    most_bytes: int = 0
    """Of all boxes of the user, those of ended runs included; 0 where nothing bounds them."""


def room_in(boxes: Folder, ranks: int, capacity: int) -> Room:
    """Return the room for each of so many ranks, which ask for a ring of `capacity` records.

    Raises BlackBoxError if there is too little for a useful ring.
    """
    try:
        found = os.fstatvfs(boxes.fileno())
    except OSError:  # a file system that does not tell
        return Room(capacity)
    total, free = (blocks * found.f_frsize for blocks in (found.f_blocks, found.f_bavail))
    if not total:  # a file system without a bound, or one that knows none
        return Room(capacity)
    most = min(total // _SHARE_OF_ALL, free // _SHARE_OF_FREE)
    of_rank = most // ranks
    if of_rank >= (MOST_OF_RANK + 2) * _size_of(capacity) + 2 * FILE_BYTES:
        return Room(capacity, most_bytes=most)
    # Beside a new box there is the one of the attempt before, or of the run before.
    fitting = (of_rank // 2 - _BESIDE_BYTES - layout.RING_OFFSET) // layout.RECORD_SIZE
    if fitting < min(capacity, LEAST_CAPACITY):
        raise BlackBoxError(
            f"the file system of {boxes.path} has {total / _MIB:.3g} MiB, {free / _MIB:.3g} of them free, "
            f"which is too little for {ranks} ranks beside the training; {REMEDY}"
        )
    return Room(min(capacity, fitting), plenty=False, most_bytes=most)


def _size_of(capacity: int) -> int:
    return layout.RING_OFFSET + capacity * layout.RECORD_SIZE
