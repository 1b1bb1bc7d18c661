"""Prometheus durations, written from seconds."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """The shortest exact Prometheus duration: 300 -> `5m`, 90 -> `90s`, 0.25 -> `250ms`.

    Raises ValueError for a time that is negative or shorter than a millisecond, zero apart.
    """
    milliseconds = round(seconds * 1000)
    if seconds == 0:
        return "0s"
    if milliseconds < 1:
        raise ValueError(f"could not write a duration: {seconds} s is less than a millisecond")
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
