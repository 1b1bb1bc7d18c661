"""Has the C library give back what large objects took, as soon as they are gone."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3) of glibc, by <malloc.h>."""
_LARGE_BYTES = 128 << 10
"""The C library begins with this, and raises it up to 32 MiB with the largest block that was freed."""
_MOST_HEAPS = 2
"""One for each thread otherwise, eight for each processor at most; each keeps what it once had."""


def give_back_what_is_free() -> None:
    """Call it before threads start. Without it flight recorders that a user has filled leave the agent larger
    for good.

    Another C library than glibc is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in (
        (_M_TRIM_THRESHOLD, _LARGE_BYTES),
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_ARENA_MAX, _MOST_HEAPS),
    ):
        mallopt(parameter, value)
