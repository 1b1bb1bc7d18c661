"""The note beside a black box with the paths of its rank's checkpoints, and why one failed: for the agent,
which may verify them, and for people.

The rank writes it anew at the end of each checkpoint operation whose path or error it knows, in about 100 us.
Nobody waits: of two threads that end an operation at the same time, one writes the entries of both.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.vocabulary import CHECKPOINT_OPERATIONS
from rankwatch.failures import LONGEST_ERROR
from rankwatch.untrusted.folders import Folder
from rankwatch.untrusted.text import json_entries, redacted, redacted_place

SUFFIX = ".checkpoints"
MOST_BYTES = 1 << 17
"""Of a note. JSON writes a character in up to six bytes."""
_MOST_ENTRIES = 16
_LONGEST_PATH = 1024
_LARGEST_STEP = 2**63 - 1
_LATEST = 1e11
"""Unix time in the year 5138."""


class NotedCheckpoint(NamedTuple):
    """A checkpoint operation that has ended, and the place of its checkpoint."""

    operation: str
    """`save`, `verify`, `load` or `upload`."""
    step: int
    path: str
    """A file, or the common folder of several files: an absolute path as the rank sees it, or a URL. Empty
    where only the error is known."""
    ended: float
    """Unix time."""
    failed: bool
    error: str = ""
    """Type and message of the exception, in one line; empty where none is known."""


class CheckpointPaths:
    """The note of one rank. Entries of earlier processes of the rank stay until newer ones displace them."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._process = os.getpid()
        self._entries: deque[NotedCheckpoint] = deque(maxlen=_MOST_ENTRIES)
        """The newest first."""
        self._earlier: tuple[NotedCheckpoint, ...] | None = None
        """Of earlier processes of the rank; None before the note is written."""
        self._outdated = False
        self._writing = threading.Lock()
        """Held by the thread that writes. Nobody waits for it."""

    def add(
        self, operation: str, step: int, path: str, ended: float, *, failed: bool, error: str = ""
    ) -> None:
        """Note an operation that ended at this moment of the monotonic clock. Raises OSError."""
        wall = time.time() - time.monotonic() + ended
        self._entries.appendleft(NotedCheckpoint(operation, step, path, wall, failed, error))
        self._outdated = True
        self.write()

    def renamed(self, source: str, target: str) -> None:
        """Follow a checkpoint to another name. Raises OSError."""
        for _ in range(len(self._entries)):
            entry = self._entries.pop()
            path = moved(entry.path, source, target)
            self._outdated |= path != entry.path
            self._entries.appendleft(entry._replace(path=path))
        self.write()

    def write(self) -> None:
        """Write what is not written yet, once the box has its place. Raises OSError."""
        if self._writer.identity is None or os.getpid() != self._process:
            return
        while self._outdated and self._writing.acquire(blocking=False):
            try:
                self._outdated = False
                self._replace_note(*self._writer.beside(SUFFIX))
            finally:
                self._writing.release()

    def _replace_note(self, folder: Folder, name: str) -> None:
        if self._earlier is None:
            self._earlier = _read(folder, name)
        entries = [*self._entries.copy(), *self._earlier][:_MOST_ENTRIES]
        folder.write(name, note_content(entries))


def note_content(entries: Iterable[NotedCheckpoint]) -> bytes:
    """Return a note with these entries."""
    return json.dumps({"checkpoints": [each._asdict() for each in entries]}).encode()


def place_of(path: object) -> str:
    """Return a path as the note holds it: absolute, or a URL without credentials; empty if this is no path,
    or too long a one."""
    if isinstance(path, str | os.PathLike | bytes):
        text = os.fsdecode(path)
        place = redacted_place(text if "://" in text else str(Path(text).absolute()))
        return place if text and len(place) <= _LONGEST_PATH else ""
    name = getattr(path, "name", None)  # an open file
    return place_of(name) if isinstance(name, str) else ""


def moved(place: str, source: str, target: str) -> str:
    """Return the place, after the file or folder at `source` has become `target`."""
    if place == source:
        return target
    inside = source + os.path.sep
    return target + place[len(source) :] if place.startswith(inside) else place


def common_place(places: Iterable[str]) -> str:
    """Return the place of a checkpoint with files at these places: the one file, or the folder of all."""
    found = dict.fromkeys(filter(None, places))
    if len(found) < 2:
        return next(iter(found), "")
    if any("://" in each for each in found):
        return ""
    common = os.path.commonpath([Path(each).parent for each in found])
    return "" if common == os.path.sep else common


def read_checkpoints(path: Path) -> tuple[NotedCheckpoint, ...]:
    """Return the entries of a note, the newest first; none if it is missing or unreadable."""
    try:
        with Folder.open(path.parent, follow=True) as folder:
            return _read(folder, path.name)
    except OSError:
        return ()


def _read(folder: Folder, name: str) -> tuple[NotedCheckpoint, ...]:
    try:
        return parse_checkpoints(folder.read(name, most_bytes=MOST_BYTES))
    except OSError:
        return ()


def parse_checkpoints(raw: bytes) -> tuple[NotedCheckpoint, ...]:
    """Return the entries in the content of a note. It is untrusted: what makes no sense is left out."""
    found = (_entry(each) for each in json_entries(raw, "checkpoints", _MOST_ENTRIES))
    return tuple(each for each in found if each is not None)


def _entry(raw: object) -> NotedCheckpoint | None:
    if not isinstance(raw, dict):
        return None
    operation, step, path, ended, failed, error = (raw.get(name, "") for name in NotedCheckpoint._fields)
    if operation not in CHECKPOINT_OPERATIONS or not isinstance(failed, bool):
        return None
    if type(step) is not int or abs(step) > _LARGEST_STEP:
        return None
    if not isinstance(error, str) or len(error) > LONGEST_ERROR or not error.isprintable():
        return None
    if not isinstance(path, str) or not (_is_place(path) or (error and not path)):
        return None
    if not isinstance(ended, int | float) or not 0.0 <= ended < _LATEST:
        return None
    place, error = (
        redacted_place(path),
        redacted(error)[:LONGEST_ERROR],
    )  # an earlier version wrote them whole
    return NotedCheckpoint(operation, step, place, float(ended), failed, error)


def _is_place(path: str) -> bool:
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return len(path) <= _LONGEST_PATH and b"\0" not in raw and (path.startswith("/") or "://" in path)
