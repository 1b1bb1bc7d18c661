"""Removal of a box after its content was read. By then its path may name another box."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ASIDE = ".removed"
"""Suffix of a box that is checked before it is removed. A leading dot hides it from readers."""


def remove_box(path: Path, inode: int) -> bool:
    """Remove the box if it has this inode; True if it had. Raises OSError.

    A resumed run may replace the box at any moment. So the box is first renamed, then checked, and put back
    if it is another one.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}{ASIDE}")
    path.rename(aside)
    ours = aside.stat(follow_symlinks=False).st_ino == inode
    if not ours:
        with contextlib.suppress(FileExistsError):  # an even newer process has created its box meanwhile
            os.link(aside, path)
    aside.unlink()
    return ours
