"""Earlier attempts of a run on this node: their boxes are `<run>/earlier/<rank>-<attempt>.blackbox`.

The process that takes the place of a rank keeps the box that it finds there, so that a run can be looked at
over its restarts, also where no agent has watched it. Of each rank the newest few are kept, with the small
files that tell why the process ended. These boxes also number the attempt that begins.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader
from rankwatch.errors import BlackBoxError
from rankwatch.identity import MOST_ATTEMPTS
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX, KILLED_SUFFIX, TERMINATED_SUFFIX
from rankwatch.processes import own_start
from rankwatch.untrusted.folders import Folder

FOLDER = "earlier"
MOST_OF_RANK = 3
"""A box takes 1 MiB of memory, or what its ring takes."""
REASONS = (TERMINATED_SUFFIX, CRASHED_SUFFIX, ERROR_FILE_SUFFIX, KILLED_SUFFIX)
"""Files beside a box that tell why its process ended. They are moved, because the next process writes its
own at their paths."""
_MOST_REASON_BYTES = 1 << 20
_MOST_ENTRIES = 1 << 16
"""Names in the folder of a run that are looked at."""
_NAME = re.compile(rf"(\d{{1,7}})-(\d{{1,7}}){re.escape(layout.SUFFIX)}", re.ASCII)


def keep(run: Folder, rank: int, box: int) -> None:
    """Keep the box of a rank, open as `box`, whose writer has ended. It stays at its place, too. What cannot
    be kept is lost, as all of it was before."""
    with contextlib.suppress(OSError):
        declared = os.pread(box, layout.STARTED_BY.size, layout.STARTED_BY_OFFSET)
        if len(declared) != layout.STARTED_BY.size:
            return
        stem = f"{rank}-{layout.STARTED_BY.unpack(declared)[0]}"
        with run.make(FOLDER) as folder:
            _remove(folder, stem)
            run.link(f"{rank}{layout.SUFFIX}", f"{stem}{layout.SUFFIX}", to=folder)
            for suffix in REASONS:
                _move(run, f"{rank}{suffix}", folder, f"{stem}{suffix}")
            of_rank = [attempt for number, attempt in _numbers(folder.names()) if number == rank]
            for attempt in sorted(of_rank)[:-MOST_OF_RANK]:
                _remove(folder, f"{rank}-{attempt}")


def place_of(path: Path, attempt: int) -> Path:
    """Return where the box at this path is kept, once another attempt has taken its place."""
    return path.parent / FOLDER / f"{path.stem}-{attempt}{layout.SUFFIX}"


def _move(run: Folder, name: str, folder: Folder, new: str) -> None:
    with contextlib.suppress(OSError):
        if 0 < run.status_of(name).st_size <= _MOST_REASON_BYTES:
            run.rename(name, new, to=folder)


def _remove(folder: Folder, stem: str) -> None:
    for suffix in (layout.SUFFIX, *REASONS):
        folder.remove(f"{stem}{suffix}")


def listed(run: Path) -> list[tuple[int, int, Path]]:
    """Rank, number of the attempt and path of each box that is kept of a run; none where a link leads."""
    try:
        with Folder.open(run, follow=True) as boxes, boxes.folder(FOLDER) as folder:
            found = sorted(_numbers(islice(folder.names(), _MOST_ENTRIES)))
    except OSError:
        return []
    return [(*each, run / FOLDER / f"{each[0]}-{each[1]}{layout.SUFFIX}") for each in found]


def _numbers(names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Rank and number of the attempt of each box among these names."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            yield int(match[1]), int(match[2])


_MOST_BOXES = 512


def next_attempt(run: Folder, counted: int) -> int:
    """Return the number of the attempt that begins now: the one that the launcher counts, or a later one if
    ranks of that attempt or of a later one have run here and are gone, or live here in a later one.

    The last counts for a rank that is new here: the others may have replaced all boxes of earlier attempts.
    """
    return max([counted, *(attempt for attempt in _attempts(run) if attempt <= MOST_ATTEMPTS)])


def _attempts(run: Folder) -> Iterator[int]:
    """Yield the least number that this attempt may have, by each box here. A rank that recorded before this
    process started, and lives no more, was in an earlier one; one that lives is in this one.

    All ranks of an attempt are started at about the same time, and record after they have imported torch."""
    this = own_start()
    if this is None:
        return
    for name in [each for each in islice(run.names(), _MOST_BOXES) if each.endswith(layout.SUFFIX)]:
        try:
            reader = Reader(run.path / name, folder=run)
        except (BlackBoxError, OSError):
            continue
        try:
            attempt = reader.header.identity.attempt
            if reader.writer_alive():
                yield attempt
            elif reader.header.started_wall < this:
                yield attempt + 1
        finally:
            reader.close()
