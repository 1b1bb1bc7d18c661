"""Listing a directory of sysfs, and telling an absent one from one that cannot be read."""

from __future__ import annotations

import os

from rankwatch_agent.runtime.collector import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import EXHAUSTED, ExhaustedError

MAX_ENTRIES = 1024
"""Most entries taken from one directory; far more than a machine has devices."""


def list_names(directory: str) -> list[str]:
    """Names in the directory, sorted; raises NotApplicable where there is none, else CollectError."""
    try:
        return sorted(os.listdir(directory))[:MAX_ENTRIES]  # noqa: PTH208 - a Path for each of 400 files costs
    except (FileNotFoundError, NotADirectoryError):
        raise NotApplicable(f"there is no {directory}") from None
    except OSError as error:
        kind = ExhaustedError if error.errno in EXHAUSTED else CollectError
        raise kind(f"could not list {directory}: {error.strerror or error}") from None


def names_or_none(directory: str) -> list[str]:
    """Names in the directory, sorted; none where it is absent or cannot be read. Raises ExhaustedError."""
    try:
        return list_names(directory)
    except ExhaustedError:
        raise
    except (NotApplicable, CollectError):
        return []
