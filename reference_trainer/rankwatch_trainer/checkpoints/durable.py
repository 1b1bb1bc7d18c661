"""Making files and names survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Waits until the disk holds the file's content, or the directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Renames within a directory; afterwards target is whole or absent, whatever happens."""
    source.rename(target)
    fsync(target.parent)
