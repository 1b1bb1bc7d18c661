"""Removal of the black boxes of runs that ended long ago. They occupy memory, and there may be no agent."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rankwatch.blackbox import kept, layout
from rankwatch.blackbox.place import remove_abandoned
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.removal import remove_box
from rankwatch.checkpoint_paths import ASIDE_SUFFIX as CHECKPOINTS_ASIDE_SUFFIX
from rankwatch.checkpoint_paths import SUFFIX as CHECKPOINTS_SUFFIX
from rankwatch.errors import BlackBoxError
from rankwatch.flight_recorder import SUFFIX as SOCKET_SUFFIX
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX, KILLED_SUFFIX, TERMINATED_SUFFIX
from rankwatch.logs.lines import PREVIOUS_SUFFIX
from rankwatch.logs.lines import SUFFIX as LINES_SUFFIX
from rankwatch.profiling import SUFFIX as PROFILE_SUFFIX
from rankwatch.profiling import remove_old_requests
from rankwatch.trackers.note import SUFFIX as TRACKERS_SUFFIX

SUFFIXES_BESIDE = (
    SOCKET_SUFFIX,
    TERMINATED_SUFFIX,
    CRASHED_SUFFIX,
    ERROR_FILE_SUFFIX,
    KILLED_SUFFIX,
    LINES_SUFFIX,
    PREVIOUS_SUFFIX,
    TRACKERS_SUFFIX,
    CHECKPOINTS_SUFFIX,
    CHECKPOINTS_ASIDE_SUFFIX,
)
"""Files that a rank may have beside its black box. They go when it goes."""
KEPT_SECONDS = 86400.0
"""A day: longer than an agent keeps them, and long enough to read them the next morning."""


def sweep(directory: Path, *, kept_seconds: float = KEPT_SECONDS) -> None:
    """Remove boxes whose writer is dead and was last active `kept_seconds` ago. What cannot be removed stays.

    Call it before this process creates its own box: closing a second descriptor of that file would drop its
    lock.
    """
    remove_abandoned(directory)
    remove_old_requests(directory)
    oldest = time.time() - kept_seconds
    for path in directory.glob(f"*/*{layout.SUFFIX}"):
        try:
            if path.lstat().st_mtime >= oldest:
                continue  # created since: it need not be opened, while the training waits
            last_activity, inode = _last_activity(path)
            if last_activity < oldest and remove_box(path, inode):
                shutil.rmtree(path.with_suffix(PROFILE_SUFFIX), ignore_errors=True)
                for suffix in SUFFIXES_BESIDE:
                    path.with_suffix(suffix).unlink(missing_ok=True)
                kept.remove_with(path.parent)
                path.parent.rmdir()
        except (OSError, BlackBoxError):
            continue  # another user's, not a box, or not the last box of its run


def _last_activity(path: Path) -> tuple[float, int]:
    """Unix time of the last activity, infinity while the writer lives; and the inode of the box."""
    reader = Reader(path)
    try:
        if reader.writer_alive():
            return float("inf"), reader.inode
        now, header = reader.now(), reader.header
        last = max(header.started_monotonic, now.step_ended, *now.phases_began.values())
        return header.wall(last), reader.inode
    finally:
        reader.close()
