"""Where a benchmark keeps its files: in memory where possible, gone at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
"""Where black boxes lie in production; a disk would be measured instead of rankwatch."""


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory for a `with` block."""
    return tempfile.TemporaryDirectory(prefix="rankwatch-bench-", dir=_MEMORY if _MEMORY.is_dir() else None)
