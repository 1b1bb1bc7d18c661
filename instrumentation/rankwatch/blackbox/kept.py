"""The boxes of earlier attempts: `<run>/earlier/<rank>-<attempt>.blackbox`.

The process that takes the place of a rank keeps the box that it finds there, so that a run can be looked at
over its restarts, also where no agent has watched it. Of each rank the newest few are kept, with the small
files that tell why the process ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX, KILLED_SUFFIX, TERMINATED_SUFFIX

FOLDER = "earlier"
MOST_OF_RANK = 3
"""A box takes 1 MiB of memory, or what its ring takes."""
REASONS = (TERMINATED_SUFFIX, CRASHED_SUFFIX, ERROR_FILE_SUFFIX, KILLED_SUFFIX)
"""Files beside a box that tell why its process ended. They are moved, because the next process writes its
own at their paths."""
_MOST_REASON_BYTES = 1 << 20
_NAME = re.compile(rf"(\d{{1,7}})-(\d{{1,7}}){re.escape(layout.SUFFIX)}", re.ASCII)


def keep(path: Path, file: int) -> None:
    """Keep the box at this path, open as `file`, whose writer has ended. It stays at its path, too. What
    cannot be kept is lost, as all of it was before."""
    with contextlib.suppress(OSError):
        declared = os.pread(file, layout.STARTED_BY.size, layout.STARTED_BY_OFFSET)
        if len(declared) != layout.STARTED_BY.size:
            return
        attempt = layout.STARTED_BY.unpack(declared)[0]
        place = place_of(path, attempt)
        folder = place.parent
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
            folder.chmod(0o755)
        _remove(place)
        os.link(path, place)
        for suffix in REASONS:
            _move(path.with_suffix(suffix), place.with_suffix(suffix))
        of_rank = sorted(
            (number, each) for rank, number, each in listed(path.parent) if str(rank) == path.stem
        )
        for _, each in of_rank[: max(0, len(of_rank) - MOST_OF_RANK)]:
            _remove(each)


def place_of(path: Path, attempt: int) -> Path:
    """Where the box at this path is kept, once another attempt has taken its place."""
    return path.parent / FOLDER / f"{path.stem}-{attempt}{layout.SUFFIX}"


def _move(path: Path, place: Path) -> None:
    with contextlib.suppress(OSError):
        if 0 < path.lstat().st_size <= _MOST_REASON_BYTES:
            path.rename(place)


def _remove(place: Path) -> None:
    for suffix in (layout.SUFFIX, *REASONS):
        place.with_suffix(suffix).unlink(missing_ok=True)


def listed(run: Path) -> list[tuple[int, int, Path]]:
    """Rank, number of the attempt and path of each box that is kept of a run."""
    found = []
    try:
        for each in (run / FOLDER).iterdir():
            match = _NAME.fullmatch(each.name)
            if match is not None:
                found.append((int(match[1]), int(match[2]), each))
    except OSError:
        return []
    return sorted(found)


def remove_with(run: Path) -> None:
    """Remove what is kept of a run of which no other box is left."""
    try:
        if not any(each.suffix == layout.SUFFIX for each in run.iterdir()):
            shutil.rmtree(run / FOLDER, ignore_errors=True)
    except OSError:
        return
