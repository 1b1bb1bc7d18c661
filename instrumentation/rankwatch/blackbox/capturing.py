"""Keeps captures of CUDA graphs and questions for the flight recorder apart.

PyTorch answers such a question by querying events, which CUDA forbids in every thread while a graph is
captured: the capture fails, and the rank hangs (seen with torch 2.11 on an H200). Whoever asks holds a shared
lock on the black box and asks only if the rank captures nothing. The rank announces a capture in the now
block, and begins it once nobody holds the lock. These are locks of `flock`; the lock that shows whether the
writer is alive is of another kind.
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

MOST_SECONDS = 0.5
"""A rank waits no longer for an answer that is under way: one of 2,000 entries takes 0.05 s."""
_BETWEEN_TRIES = 0.001


def answered(box: int) -> bool:
    """Wait until no question is under way, in the rank that has announced a capture.

    box: the descriptor of its black box. Returns False if a question takes too long.
    """
    end = time.monotonic() + MOST_SECONDS
    while True:
        try:
            fcntl.flock(box, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_BETWEEN_TRIES)
        except OSError:  # a file system without such locks
            return True
        else:
            fcntl.flock(box, fcntl.LOCK_UN)
            return True


@contextmanager
def may_ask(path: Path) -> Iterator[bool]:
    """Yields False if the rank of this black box captures a graph, or is about to. A rank without a box that
    can be read announces no captures, and may be asked."""
    try:
        box = open_box(path)
    except BlackBoxError:
        yield True
        return
    try:
        yield _is_free(box)
    finally:
        os.close(box)


def _is_free(box: int) -> bool:
    try:
        fcntl.flock(box, fcntl.LOCK_SH | fcntl.LOCK_NB)
        word = os.pread(box, 8, layout.NOW_OFFSET + 8 * Now.CAPTURING)
    except BlockingIOError:
        return False
    except OSError:  # no regular file, or a file system without such locks
        return True
    return int.from_bytes(word, "little", signed=True) <= 0
