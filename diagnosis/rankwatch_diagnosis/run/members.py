"""The ranks that the short form of a process group's members stands for (`rankwatch.members`)."""

from __future__ import annotations

import re

MOST_MEMBERS = 1 << 16
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?:/(\d{1,7}))?)?")


def parse_members(text: str, size: int) -> tuple[int, ...] | None:
    """The ranks in ascending order; None where the text is cut, or does not fit the size of the group."""
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            return None
        first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if stride < 1 or last < first or (last - first) // stride + len(found) >= MOST_MEMBERS:
            return None
        found.extend(range(first, last + 1, stride))
    return tuple(sorted(found)) if len(set(found)) == len(found) == size else None
