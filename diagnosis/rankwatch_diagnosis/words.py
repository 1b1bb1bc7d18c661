"""Ranks, counts, shares, durations and moments as a person reads them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

_PIECES_SHOWN = 8


def listed(ranks: Sequence[int], most: int = 16) -> str:
    """Return `rank 3`, or `ranks 3, 5 and 2 more`."""
    shown = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def as_ranges(numbers: Iterable[int]) -> str:
    """Return `0 to 3, 7` for {0, 1, 2, 3, 7}; at most eight pieces."""
    pieces: list[list[int]] = []
    for each in sorted(numbers):
        if pieces and each == pieces[-1][1] + 1:
            pieces[-1][1] = each
        else:
            pieces.append([each, each])
    texts = [f"{a}" if a == b else f"{a} to {b}" for a, b in pieces]
    more = f" and {len(texts) - _PIECES_SHOWN} more" if len(texts) > _PIECES_SHOWN else ""
    return ", ".join(texts[:_PIECES_SHOWN]) + more


def counted(number: object, thing: str) -> str:
    """Return `1 rank`, or `2 ranks`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def share(ratio: float | None) -> str:
    """Return a ratio as a percentage; `unknown` for None."""
    return "unknown" if ratio is None else f"{100 * ratio:.1f}%"


def duration(seconds: float) -> str:
    """Return seconds with three digits, in the largest unit that fits."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{seconds:.3g} s"


def moment(wall: float) -> str:
    """Return a Unix time, in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(wall))
    except (OverflowError, ValueError, OSError):
        return "?"
