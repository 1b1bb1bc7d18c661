"""Removal of the black boxes of runs that ended long ago. They occupy memory, and there may be no agent.

Everything is removed by descriptors of folders: their owners may exchange folders for links meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from rankwatch.blackbox import earlier_attempts, layout
from rankwatch.blackbox.capturing import SUFFIX as QUESTIONS_SUFFIX
from rankwatch.blackbox.place import remove_abandoned
from rankwatch.blackbox.reader import Reader
from rankwatch.checkpoint_paths import SUFFIX as CHECKPOINTS_SUFFIX
from rankwatch.errors import BlackBoxError
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX, KILLED_SUFFIX, TERMINATED_SUFFIX
from rankwatch.logs.lines import PREVIOUS_SUFFIX
from rankwatch.logs.lines import SUFFIX as LINES_SUFFIX
from rankwatch.profiling import SUFFIX as PROFILE_SUFFIX
from rankwatch.profiling import remove_old_requests
from rankwatch.trackers.finding import SUFFIX as TRACKERS_SUFFIX
from rankwatch.untrusted.folders import Folder

SUFFIXES_BESIDE = (
    layout.SOCKET_SUFFIX,
    QUESTIONS_SUFFIX,
    TERMINATED_SUFFIX,
    CRASHED_SUFFIX,
    ERROR_FILE_SUFFIX,
    KILLED_SUFFIX,
    LINES_SUFFIX,
    PREVIOUS_SUFFIX,
    TRACKERS_SUFFIX,
    CHECKPOINTS_SUFFIX,
)
"""Files that a rank may have beside its black box. They go when it goes."""
KEPT_SECONDS = 86400.0
"""A day: longer than an agent keeps them, and long enough to read them the next morning."""
_MOST_SECONDS = 1.0
_MOST_NAMES = 8192
"""In the folder of a run: 256 ranks, each with a dozen files, leave room. A user can make millions."""
_BLOCK_BYTES = 512
"""Of `st_blocks`, see stat(2)."""


def sweep(boxes: Folder, *, kept_seconds: float = KEPT_SECONDS, most_bytes: int = 0) -> None:
    """Remove boxes whose writer is dead and was last active `kept_seconds` ago. What cannot be removed stays.

    most_bytes: if this user's runs here take more, boxes of their ended ranks go, those that ended first
    before the others, until half of it is free for a new run; 0 for no such bound.

    It takes a second at most, whatever others have put here, because the training waits. What is left over
    then is removed another time, or by the agent.

    Call it before this process creates its own box: closing a second descriptor of that file would drop its
    lock.
    """
    in_time = _InTime(time.monotonic() + _MOST_SECONDS)
    remove_abandoned(boxes, in_time(boxes.names()))
    remove_old_requests(boxes, in_time(boxes.names()))
    for each in _ended(boxes, in_time, before=time.time() - kept_seconds):
        _remove(boxes, each)
    if most_bytes and _used(boxes) > most_bytes // 2 and _own_bytes(boxes, in_time) > most_bytes // 2:
        for each in sorted(_ended(boxes, in_time, before=inf)):
            if each.owner == os.geteuid() and _own_bytes(boxes, in_time) > most_bytes // 2:
                _remove(boxes, each)


class _InTime:
    """Passes on what there is until a monotonic time."""

    def __init__(self, end: float) -> None:
        self._end = end

    def __call__(self, names: Iterable[str]) -> Iterator[str]:
        return takewhile(lambda _: time.monotonic() < self._end, names)


def remove_rank(boxes: Folder, run: Folder, stem: str, inode: int) -> bool:
    """Remove the box `<stem>.blackbox` of a run if it has this inode, with all that its rank has left.

    With its last box the run goes, too. Returns False if another process has the place by now. Raises
    OSError if the box cannot be removed; what else cannot be removed stays.
    """
    if not run.remove_if(f"{stem}{layout.SUFFIX}", inode):
        return False
    run.remove_tree(f"{stem}{PROFILE_SUFFIX}")
    for suffix in SUFFIXES_BESIDE:
        with contextlib.suppress(OSError):
            run.remove_with_new(f"{stem}{suffix}")
    with contextlib.suppress(OSError):
        names = list(islice(run.names(), _MOST_NAMES + 1))
        if len(names) > _MOST_NAMES or any(each.endswith(layout.SUFFIX) for each in names):
            return True
        run.remove_tree(earlier_attempts.FOLDER)
        run.remove_asides()
        boxes.remove_empty(run.path.name)
    return True


class _Ended(NamedTuple):
    """The box of a rank that has ended. Those that ended first sort first."""

    last_activity: float
    """Unix time."""
    run: str
    stem: str
    inode: int
    owner: int


def _ended(boxes: Folder, in_time: _InTime, *, before: float) -> Iterator[_Ended]:
    """Yield the boxes of ended ranks that were last active before this Unix time."""
    for name in in_time(boxes.names()):
        try:
            with boxes.folder(name) as run:
                for each in in_time(run.names()):
                    if each.endswith(layout.SUFFIX):
                        yield from _if_ended(run, each, before)
        except OSError:
            continue  # no folder, another user's, or gone


def _if_ended(run: Folder, name: str, before: float) -> Iterator[_Ended]:
    with contextlib.suppress(OSError, BlackBoxError):  # gone, or not a box
        if run.status_of(name).st_mtime >= before:
            return  # created since: it need not be opened, while the training waits
        reader = Reader(run.path / name, folder=run)
        try:
            if reader.writer_alive():
                return
            now, header = reader.now(), reader.header
            last = header.wall(max(header.started_monotonic, now.step_ended, *now.phases_began.values()))
        finally:
            reader.close()
        if last < before:
            yield _Ended(last, run.path.name, name.removesuffix(layout.SUFFIX), reader.inode, reader.owner)


def _remove(boxes: Folder, ended: _Ended) -> None:
    with contextlib.suppress(OSError), boxes.folder(ended.run) as run:
        remove_rank(boxes, run, ended.stem, ended.inode)


def _used(boxes: Folder) -> int:
    """Return the bytes that are in use in the file system."""
    found = os.fstatvfs(boxes.fileno())
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _own_bytes(folder: Folder, in_time: _InTime, deeper: int = 2) -> int:
    """Count the bytes of this user's files in the folders of runs, and in those that they hold."""
    found = 0
    for name in in_time(folder.names()):
        with contextlib.suppress(OSError):
            status = folder.status_of(name)
            if status.st_uid != os.geteuid():
                continue  # nobody has files of their own in a run of somebody else
            found += status.st_blocks * _BLOCK_BYTES
            if deeper:
                with folder.folder(name) as inner:
                    found += _own_bytes(inner, in_time, deeper - 1)
    return found
