"""The boxes of earlier attempts: `<run>/earlier/<rank>-<attempt>.blackbox`.

The process that takes the place of a rank keeps the box that it finds there, so that a run can be looked at
over its restarts, also where no agent has watched it. Of each rank the newest few are kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from rankwatch.blackbox import layout

FOLDER = "earlier"
MOST_OF_RANK = 3
"""A box takes 1 MiB of memory, or what its ring takes."""
_NAME = re.compile(rf"(\d{{1,7}})-(\d{{1,7}}){re.escape(layout.SUFFIX)}", re.ASCII)


def keep(path: Path, file: int) -> None:
    """Keep the box at this path, open as `file`, whose writer has ended. It stays at its path, too. What
    cannot be kept is lost, as all of it was before."""
    with contextlib.suppress(OSError):
        declared = os.pread(file, layout.STARTED_BY.size, layout.STARTED_BY_OFFSET)
        if len(declared) != layout.STARTED_BY.size:
            return
        attempt = layout.STARTED_BY.unpack(declared)[0]
        folder = path.parent / FOLDER
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
            folder.chmod(0o755)
        place = folder / f"{path.stem}-{attempt}{layout.SUFFIX}"
        place.unlink(missing_ok=True)
        os.link(path, place)
        of_rank = sorted(
            (number, each) for rank, number, each in listed(path.parent) if str(rank) == path.stem
        )
        for _, each in of_rank[: max(0, len(of_rank) - MOST_OF_RANK)]:
            each.unlink(missing_ok=True)


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
