"""A bundle while it is written: files of its owner only, within a bound, on a disk that stays usable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.error import EvidenceError, write_error

FREE_BYTES = 1 << 30
"""Left free on the file system, whatever is written: it may be that of the node's other services."""
FREE_SHARE = 0.05
"""Likewise, of the size of the file system; the smaller of the two counts."""
CHUNK_BYTES = 1 << 20
"""Read and written at once."""
RESERVED_BYTES = 8 << 20
"""Kept for the verdict and the manifest, which come last; a quarter of the bundle where that is less."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Written(NamedTuple):
    """A file of the bundle."""

    path: str
    """Below the bundle."""
    size: int


class BundleFolder:
    """The directory of a bundle, which exists and belongs to us alone.

    most_bytes: of all its files together.
    ends: monotonic moment in seconds past which nothing is written: a slow disk holds nobody for long.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_bytes: int,
        ends: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.files: list[Written] = []
        self._reserved = min(RESERVED_BYTES, most_bytes // 4)
        self._left = most_bytes - self._reserved
        self._ends = ends
        self._monotonic = monotonic

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a file; what does not fit leaves no file.

        Raises EvidenceError where it does not fit, the disk is full or cannot be written, and whatever
        `chunks` raises.
        """
        target = self.path / name
        written = 0
        try:
            for parent in [*target.relative_to(self.path).parents][-2::-1]:
                (self.path / parent).mkdir(mode=0o700, exist_ok=True)
            file = os.open(target, _NEW_FILE, 0o600)
        except OSError as error:
            raise write_error(name, error) from None
        complete = False
        try:
            for chunk in chunks:
                written += self._append(file, name, chunk)
            complete = True
        except OSError as error:
            raise write_error(name, error) from None
        finally:
            os.close(file)
            if complete:
                self.files.append(Written(name, written))
            else:
                target.unlink(missing_ok=True)
                self._left += written

    @property
    def left_bytes(self) -> int:
        """Bytes that may still be written, the reserve among them."""
        return self._left + self._reserved

    def use_reserve(self) -> None:
        """From now on the last part of the bundle's bytes may be written too."""
        self._left, self._reserved = self._left + self._reserved, 0

    def _append(self, file: int, name: str, chunk: bytes) -> int:
        size = len(chunk)
        if self._monotonic() > self._ends:
            raise EvidenceError(EvidenceFault.WRITE, f"could not write {name}: the time was over")
        if size > self._left:
            raise EvidenceError(EvidenceFault.SIZE, f"{name} would make the bundle too large")
        if size > _spare_bytes(file):
            raise EvidenceError(EvidenceFault.NO_SPACE, f"could not write {name}: too little space is free")
        view = memoryview(chunk)
        while view:
            view = view[os.write(file, view) :]
        self._left -= size
        return size


def _spare_bytes(file: int) -> float:
    """Bytes that may still be written to the file system."""
    status = os.fstatvfs(file)
    kept = min(FREE_BYTES, FREE_SHARE * status.f_blocks * status.f_frsize)
    return status.f_bavail * status.f_frsize - kept
