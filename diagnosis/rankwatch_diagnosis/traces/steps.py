"""Which step a moment of a trace belongs to: as annotated, or else by what every step does once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.traces.recording import Recording, Step

LEAST_REPEATS = 3
"""Of a sequence of collectives before it is taken for a step."""
_MOST_PERIOD = 100_000
NO_STEP = -1


class Steps(NamedTuple):
    """The steps of one trace, in order of time."""

    number: NDArray[np.int64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    by_launch: bool
    """Times are of the host, where kernels are launched; else of the place where they run."""
    source: str
    """What showed them; empty for the profiler's own annotation."""

    def of(self, moments: NDArray[np.float64]) -> NDArray[np.int64]:
        """The index of the step of each moment, NO_STEP for none."""
        place = np.searchsorted(self.begin, moments, side="right") - 1
        inside = (place >= 0) & (moments <= self.end[np.maximum(place, 0)])
        return np.where(inside, place, NO_STEP)


def steps_of(
    recording: Recording, optimizer_ends: NDArray[np.float64], keys: Sequence[tuple[float, float, object]]
) -> Steps | None:
    """The steps of a recording; None where nothing shows them.

    keys: begin, end and identity of each collective, in order of time.
    """
    if recording.steps:
        return _annotated(recording.steps, by_launch=True)
    if recording.device_steps:
        return _annotated(recording.device_steps, by_launch=False)
    if len(optimizer_ends) >= LEAST_REPEATS:
        # What precedes the first end may be part of a step only.
        return _between(optimizer_ends, by_launch=True, source="calls of the optimizer")
    period = _period([each[2] for each in keys])
    if period is None:
        return None
    ends = np.array([each[1] for each in keys], dtype=np.float64)
    return _between(ends[period - 1 :: period], by_launch=False, source="repeats of the collectives")


def _annotated(steps: Sequence[Step], *, by_launch: bool) -> Steps:
    """Without a number that comes again, as on a second thread or stream."""
    seen: dict[int, Step] = {}
    for each in sorted(steps, key=lambda step: (step.begin, -step.end)):
        seen.setdefault(each.number, each)
    kept = list(seen.values())
    begin = np.array([each.begin for each in kept], dtype=np.float64)
    end = np.array([each.end for each in kept], dtype=np.float64)
    end[:-1] = np.minimum(end[:-1], begin[1:])
    return Steps(np.array([each.number for each in kept], dtype=np.int64), begin, end, by_launch, "")


def _between(ends: NDArray[np.float64], *, by_launch: bool, source: str) -> Steps:
    count = len(ends) - 1
    return Steps(np.arange(count, dtype=np.int64), ends[:-1], ends[1:], by_launch, source)


def _period(keys: Sequence[object]) -> int | None:
    """The shortest sequence that repeats over all keys, at least LEAST_REPEATS times; None for none."""
    numbers: dict[object, int] = {}
    values = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    for period in range(1, min(len(values) // LEAST_REPEATS, _MOST_PERIOD) + 1):
        if values[period] == values[0] and (values[period:] == values[:-period]).all():
            return period
    return None
