"""The global ranks of a process group in a few characters, the same on all of its ranks.

PyTorch gives all groups of one mesh dimension one name (`mesh_tp`): only name and members together
tell two groups apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

MOST_CHARACTERS = 40
_HASH_CHARACTERS = 8


def members_text(ranks: Sequence[int]) -> str:
    """`0-3`, `0-12/4` (every fourth), `0,3,7`; several such parts are joined by commas.

    Past MOST_CHARACTERS the text is cut, and a hash of the whole keeps it apart from others.
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
    """End of the longest run of equal distances from `start` on; two ranks are no run unless neighbours."""
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
