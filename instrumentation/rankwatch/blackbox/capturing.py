"""Keeps captures of CUDA graphs and questions for the flight recorder apart.

PyTorch answers such a question by querying events, which CUDA forbids in every thread while a graph is
captured: the capture fails, and the rank hangs (seen with torch 2.11 on an H200). Whoever asks holds a shared
lock on a file beside the black box and asks only if the rank captures nothing. The rank announces a capture
in the now block of its box, and begins it once nobody holds the lock.

The file is there for the lock alone. The box cannot hold it: whoever may read a file may lock it, for ever.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.reader import open_box
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.folders import Folder, open_regular

SUFFIX = ".asking"
"""Of the file with the lock, which none but its owner and root can open."""
MOST_SECONDS = 0.5
"""A rank waits no longer for an answer that is under way: one of 2,000 entries takes 0.05 s."""
_BETWEEN_TRIES = 0.001


def create(folder: Folder, name: str) -> int:
    """Create the file with the lock; its descriptor. Raises OSError."""
    folder.remove(name)
    return folder.create(name, mode=0o600)


def wait_for_answer(lock: int) -> bool:
    """Wait until no question is under way, in the rank that has announced a capture.

    lock: the descriptor of its file with the lock. Returns False if a question takes too long.
    """
    end = time.monotonic() + MOST_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_BETWEEN_TRIES)
        except OSError:  # a file system without such locks
            return True
        else:
            fcntl.flock(lock, fcntl.LOCK_UN)
            return True


@contextmanager
def may_ask(box: Path, owner: int) -> Iterator[bool]:
    """Yield False if the rank of this black box captures a graph, or is about to. A rank without a box that
    can be read announces no captures, and may be asked.

    owner: user id of the rank. Raises OSError on entry if its file with the lock cannot be opened; a rank
    without one waits for nobody.
    """
    try:
        lock = open_regular(box.with_suffix(SUFFIX), owner=owner)
    except FileNotFoundError:
        yield not _captures(box)
        return
    try:
        yield _is_free(lock) and not _captures(box)
    finally:
        os.close(lock)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks
        pass
    return True


def _captures(path: Path) -> bool:
    try:
        box = open_box(path)
    except BlackBoxError:
        return False
    try:
        word = os.pread(box, 8, layout.NOW_OFFSET + 8 * Now.CAPTURING)
    except OSError:
        return False
    finally:
        os.close(box)
    return int.from_bytes(word, "little", signed=True) > 0
