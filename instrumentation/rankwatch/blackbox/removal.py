"""Removes a box that was judged by its content, where its path may name another one by then."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ASIDE = ".removed"
"""Ends the name of a box that is looked at for the last time; a leading dot keeps readers from it."""


def remove_box(path: Path, inode: int) -> bool:
    """Remove the box with this inode, and say whether the path named it. Raises OSError.

    A run that is resumed puts a new box in the place of the old one at any moment. So the box is put aside,
    looked at, and put back if it is another one.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}{ASIDE}")
    path.rename(aside)
    ours = aside.stat(follow_symlinks=False).st_ino == inode
    if not ours:
        with contextlib.suppress(FileExistsError):  # of a process that is newer still
            os.link(aside, path)
    aside.unlink()
    return ours
