"""How much memory the black boxes of a node may take where their file system is small, as in a container.

A container has 64 MiB of /dev/shm by default, which the workers of data loaders need. All ranks of a user
together take at most a sixteenth of the file system, and at most a quarter of what is free.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.kept import MOST_OF_RANK
from rankwatch.errors import BlackBoxError
from rankwatch.logs.lines import FILE_BYTES
from rankwatch.untrusted.folders import Folder

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
"""What a user can do about too little room."""


class Room(NamedTuple):
    """What a rank may keep."""

    capacity: int
    """Records in its ring."""
    plenty: bool = True
    """False if it keeps neither boxes of earlier attempts nor its newest lines."""
    most_bytes: int = 0
    """Of all boxes of the user, those of ended runs included; 0 where nothing bounds them."""


def room_in(boxes: Folder, ranks: int, capacity: int) -> Room:
    """The room for each of so many ranks, which ask for a ring of `capacity` records.

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
