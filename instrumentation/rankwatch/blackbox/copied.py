"""Private memory that a thread copies into a file, for directories that other tenants of the node share.

Whoever cuts a file that is mapped kills the process that has mapped it (SIGBUS). The mode of a file keeps out
everybody but its owner and root, and in a directory that several containers mount these may be other tenants.
There, nothing is mapped. The training thread writes into memory, as ever. It must not write to the file: a
system call gives up the interpreter's lock, and beside a busy thread it gets it back 5 ms later.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import deque

from rankwatch.blackbox import layout

_PAUSE_SECONDS = 0.1
"""Pause between two copies: what a process writes in it before it is killed is lost."""
_ALL_EACH = 10
"""Each so many times all of the file is read and compared, else only what it has written of the newest
parts: a file that is cut while a copy writes behind the cut has its old size again, and zeros before it."""


class CopiedFile:
    """The memory of an open file. A thread brings the file up to date until `close`.

    file: stays the caller's; this object works with a descriptor of its own.
    size: of the file, in bytes. part_bytes: what is copied at once; a reader sees no part half done.
    ring_offset: what lies behind it is written part by part, in turns.
    """

    def __init__(self, file: int, size: int, *, part_bytes: int, ring_offset: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self._file = os.dup(file)
        """Only the thread closes it: the number would be another file's while the thread still writes."""
        self._size, self._part_bytes = size, part_bytes
        self._status = os.fstat(file)
        self._fixed = range(0, ring_offset, part_bytes)
        self._ring = deque(range(ring_offset, size, part_bytes))
        """Offsets of its parts, from the one before the newest on."""
        self._held: dict[int, bytes] = {}
        """What the file holds, by offset."""
        self._count = 0
        self._copying = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="rankwatch-copies", daemon=True)
        self._thread.start()

    def copy(self) -> None:
        """Bring the file up to date. Raises OSError."""
        if not self._copying.acquire(timeout=layout.LAG_SECONDS):
            return
        try:
            status = os.fstat(self._file)
            if not os.path.samestat(status, self._status):
                raise OSError(errno.EBADF, "the program has closed the descriptor and opened another file")
            if status.st_size < self._size:
                self._held.clear()  # somebody has cut it: the whole content is written again
            self._copy_parts(everything=not self._held or self._count % _ALL_EACH == 0)
            self._count += 1
        finally:
            self._copying.release()

    def close(self) -> None:
        """Have the thread copy for the last time. Nobody waits long for a file system without an answer."""
        self._closed.set()
        self._thread.join(layout.LAG_SECONDS)

    def _copy_parts(self, *, everything: bool) -> None:
        for at in self._fixed:
            self._copy_part(at, read_back=everything)
        newest = 0
        for number, at in enumerate(self._ring):
            if self._copy_part(at, read_back=everything):
                newest = number
            elif number > 1 and not everything:
                break  # the newest part was full, so the next one was looked at, too
        if newest > 1:
            self._ring.rotate(1 - newest)

    def _copy_part(self, at: int, *, read_back: bool) -> bool:
        """Copy a part if it is not what the file holds; True if it was not."""
        part = self.memory[at : at + self._part_bytes]
        if read_back:
            self._held[at] = os.pread(self._file, len(part), at)
        if part == self._held.get(at):
            return False
        if os.pwrite(self._file, part, at) == len(part):  # else the file system is full
            self._held[at] = part
        return True

    def _keep_up(self) -> None:
        while not self._closed.wait(_PAUSE_SECONDS):
            if not self._tried():
                return
        self._count = 0
        if self._tried():
            with self._copying:
                file, self._file = self._file, -1
                os.close(file)

    def _tried(self) -> bool:
        """Copy; False if what this thread may write to is gone."""
        try:
            self.copy()
        except OSError as error:  # else the file system is full, perhaps not for ever
            return error.errno != errno.EBADF
        return True
