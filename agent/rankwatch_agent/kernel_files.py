"""Reading the small text files of /proc and /sys, and telling a missing one from a broken one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rankwatch_agent.collection import CollectError, NotApplicable

Parsed = TypeVar("Parsed")

# A kernel without the feature, or a driver that does not know the answer.
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV})


def read_kernel_file(path: Path) -> str:
    """The text of the file; raises NotApplicable where this kernel has none, else CollectError."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno in _NOT_HERE:
            raise NotApplicable(f"{path}: {error.strerror}") from None
        raise CollectError(f"could not read {path}: {error.strerror or error}") from None


def parse_kernel_file(path: Path, parse: Callable[[str], Parsed]) -> Parsed:
    """The file read and parsed; what `parse` rejects with ValueError or LookupError is a CollectError."""
    text = read_kernel_file(path)
    try:
        return parse(text)
    except (ValueError, LookupError) as error:
        raise CollectError(f"could not parse {path}: {error}") from None
