"""`--profile-on-slow N`: traces by `torch.profiler` of the slowest of the next steps, for who asks for them.

Whoever finds a rank slow leaves a *request*: an empty file in the directory of the black boxes, which all
users may write to. The rank looks for it after a step, at most every 10 s, which is one `stat` for each user
that it believes. Then it records the steps of a window, one trace for each, and keeps those of the slowest.
What a step will take is only known after it, so the others are recorded too and thrown away.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from rankwatch.untrusted.folders import Folder

SUFFIX = ".profile"
"""Suffix of the directory beside the black box that holds the rank's traces."""
TRACE_SUFFIX = ".json.gz"
MOST_REQUESTS = 4
"""Requests that a rank serves in its life."""
MOST_BYTES = 32 << 20
"""Size of a trace that is kept."""
MOST_BYTES_IN_ALL = 128 << 20
"""Of all traces of a rank. The directory usually is memory."""
VALID_SECONDS = 600.0
"""Age from which a request is too old to be served."""
_MOST_ENTRIES = 1000
_MOST_NAMES = 1 << 16
"""In the directory of the black boxes that are looked at for each request. A user can make millions."""
_REQUEST_SUFFIX = ".profile-request"


def request_path(directory: Path, run: str, rank: int, user: int) -> Path:
    """Return where a user leaves a request. Each user has a name, as nobody can replace another's file."""
    return directory / f".{run}.{rank}.{user}{_REQUEST_SUFFIX}"


def request(directory: Path, run: str, rank: int) -> Path:
    """Ask a rank for traces of its slowest next steps; returns the request. Raises OSError."""
    path = request_path(directory, run, rank, os.geteuid())
    with Folder.open(directory, follow=True) as boxes:
        remove_old_requests(boxes, islice(boxes.names(), _MOST_NAMES))
        boxes.remove(path.name)
        os.close(boxes.create(path.name))
    return path


def remove_old_requests(boxes: Folder, names: Iterable[str]) -> None:
    """Remove, of these, the requests of this user that are too old to be served."""
    ending = f".{os.geteuid()}{_REQUEST_SUFFIX}"
    for name in names:
        if not (name.startswith(".") and name.endswith(ending)):
            continue
        with contextlib.suppress(OSError):  # another process was faster
            if boxes.status_of(name).st_mtime < time.time() - VALID_SECONDS:
                boxes.remove(name)


def traces_beside(box: Path) -> list[Path]:
    """Return the traces of a rank, by step. Names only: another user may have put anything there, also what
    is no text."""
    traces = box.with_suffix(SUFFIX)
    try:
        with Folder.open(box.parent) as run, run.folder(traces.name) as folder:
            names = [*islice(folder.names(), _MOST_ENTRIES)]
    except OSError:
        return []
    shown = (each for each in names if each.isprintable() and not each.startswith("."))
    return [traces / each for each in sorted(shown) if each.endswith(TRACE_SUFFIX)]
