"""The global ranks of a process group as a short text, the same on all of its ranks.

PyTorch gives all groups of one mesh dimension the same name (`mesh_tp`). Only the name and the members
together identify a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

MOST_CHARACTERS = 40
_HASH_CHARACTERS = 8


def members_text(ranks: Sequence[int]) -> str:
    """Return the ranks as `0-3`, `0-12/4` (every fourth) or `0,3,7`. Commas join several such parts.

    A text longer than MOST_CHARACTERS is cut and ends with a hash of the whole text, so that it stays unique.
    """
    parts: list[str] = []
    ordered = sorted(set(ranks))
    at = 0
    while at < len(ordered):
        end = _end_of_run(ordered, at)
        parts.append(_run_text(ordered[at:end]))
        at = end
    text = ",".join(parts)
    if len(text) <= MOST_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{text[: MOST_CHARACTERS - _HASH_CHARACTERS - 2]}..{digest}"


def _end_of_run(ordered: Sequence[int], start: int) -> int:
    """End of the longest run of equally spaced ranks from `start` on. Two ranks are a run only if
    adjacent."""
    end = start + 1
    if end < len(ordered):
        stride = ordered[end] - ordered[start]
        while end < len(ordered) and ordered[end] - ordered[end - 1] == stride:
            end += 1
        if end - start == 2 and stride > 1:
            end = start + 1
    return end


def _run_text(run: Sequence[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    stride = run[1] - run[0]
    return f"{run[0]}-{run[-1]}" if stride == 1 else f"{run[0]}-{run[-1]}/{stride}"
