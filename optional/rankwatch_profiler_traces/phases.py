"""Which phase and which step a moment of a trace belongs to: as annotated, or by what every step does once.

Phases are annotations of PyTorch and of users, and the operators of autograd. A kernel belongs to the phase
of the call that launched it, wherever it runs. What no phase claims is forward, but for what stands between
backward and optimizer, such as the clipping of gradients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Phase(IntEnum):
    """What a part of a step does; also its name in the table, in lower case."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    DATA_LOADING = 3


_OPTIMIZER = re.compile(r"optimizer|optim[._ ]?step", re.IGNORECASE)
_LOADING = re.compile(
    r"data_?loader|data[_ ](loading|wait|fetch)|(load|fetch|next|get)[_ ](data|batch)\b", re.I
)
_FORWARD = re.compile(r"(?<![a-z])(forward|fwd)(?![a-z])|\.forward", re.IGNORECASE)
_BACKWARD = re.compile(r"(?<![a-z])(backward|bwd)(?![a-z])", re.IGNORECASE)


class Intervals(Protocol):
    """Columns of intervals, by thread."""

    @property
    def begin(self) -> object: ...
    @property
    def length(self) -> object: ...
    @property
    def of(self) -> object: ...


def phase_of(annotation: str) -> Phase | None:
    """Return the phase that an annotation stands for; None for none, and for one that holds several."""
    if _OPTIMIZER.search(annotation):
        return Phase.OPTIMIZER
    if _LOADING.search(annotation):
        return Phase.DATA_LOADING
    forward, backward = bool(_FORWARD.search(annotation)), bool(_BACKWARD.search(annotation))
    if forward == backward:
        return None
    return Phase.FORWARD if forward else Phase.BACKWARD


class Phases:
    """The phases of one rank over its time, in microseconds."""

    def __init__(self, marks: Mapping[Phase, Intervals]) -> None:
        parts = [_columns(marks[phase], phase) for phase in Phase if phase is not Phase.DATA_LOADING]
        parts[Phase.OPTIMIZER] = _without_closures(parts[Phase.OPTIMIZER], parts[Phase.BACKWARD])
        begin, end, thread, phase = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((-end, begin, thread))
        outer = order[_outermost(begin[order], end[order], thread[order])]
        self._begin, self._end = begin[outer], end[outer]
        self._thread, self._phase = thread[outer], phase[outer]
        by_time = np.argsort(self._begin, kind="stable")
        self._all_begin, self._all_phase = self._begin[by_time], self._phase[by_time]
        self.known = len(outer) > 0
        """A phase was marked somewhere. Without any, all compute is alike."""
        self.loading = _columns(marks[Phase.DATA_LOADING], Phase.DATA_LOADING)[:2]
        """Begins and ends of data loading."""

    def at(self, moment: NDArray[np.float64], thread: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the phase of the host at each moment, on its thread."""
        found = self._between(moment)
        for each in np.unique(thread).tolist():
            own = slice(*np.searchsorted(self._thread, (each, each + 1)).tolist())
            begin, end, phase = self._begin[own], self._end[own], self._phase[own]
            if not len(begin):
                continue
            asking = np.flatnonzero(thread == each)
            place = np.searchsorted(begin, moment[asking], side="right") - 1
            inside = (place >= 0) & (moment[asking] <= end[np.maximum(place, 0)])
            if (phase == Phase.BACKWARD).all() and len(np.unique(self._thread)) > 1:
                found[asking] = Phase.BACKWARD  # a thread of autograd alone
            found[asking[inside]] = phase[place[inside]]
        return found

    def optimizer_ends(self) -> NDArray[np.float64]:
        """Return when each run of optimizers ended, with any other phase between the runs."""
        by_time = np.argsort(self._begin, kind="stable")
        optimizer = self._phase[by_time] == Phase.OPTIMIZER
        last = optimizer & ~np.r_[optimizer[1:], False]
        ends: NDArray[np.float64] = self._end[by_time][last]
        return ends

    def _between(self, moment: NDArray[np.float64]) -> NDArray[np.int8]:
        """Return the phase of each moment by the marks around it, on whatever thread."""
        place = np.searchsorted(self._all_begin, moment, side="right")
        around = np.r_[np.int8(-1), self._all_phase, np.int8(-1)]
        clips = (around[place] == Phase.BACKWARD) & (around[place + 1] == Phase.OPTIMIZER)
        return np.where(clips, np.int8(Phase.OPTIMIZER), np.int8(Phase.FORWARD))


_Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int8]]
"""Begin, end, thread and phase."""


def _without_closures(optimizer: _Columns, backward: _Columns) -> _Columns:
    """Begin calls of the optimizer where the backward pass ends that they hold: Lightning hands both passes
    to `step` as a closure.
    """
    order = np.argsort(backward[0], kind="stable")
    begins, ends = backward[0][order], np.maximum.accumulate(backward[1][order])
    begin, end, thread, phase = optimizer
    last = np.searchsorted(begins, end, side="left") - 1
    if len(begins):
        holds = (last >= 0) & (begins[np.maximum(last, 0)] >= begin)
        begin = np.where(holds, np.minimum(ends[np.maximum(last, 0)], end), begin)
    return begin, end, thread, phase


def _columns(marks: Intervals, phase: Phase) -> _Columns:
    begin = np.asarray(marks.begin, dtype=np.float64)
    return (
        begin,
        begin + np.asarray(marks.length, dtype=np.float64),
        np.asarray(marks.of, dtype=np.int64),
        np.full(len(begin), phase, dtype=np.int8),
    )


def _outermost(
    begin: NDArray[np.float64], end: NDArray[np.float64], thread: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mark, of intervals in the order of thread, begin and length, those that lie in no other one."""
    keep = np.ones(len(begin), dtype=np.bool_)
    if not len(begin):
        return keep
    for each in np.unique(thread).tolist():
        own = slice(*np.searchsorted(thread, (each, each + 1)).tolist())
        reached = np.maximum.accumulate(end[own])
        keep[own][1:] = end[own][1:] > reached[:-1]
    return keep


def top_level(operators: Intervals) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Begin, end and thread of the operators that no other one holds."""
    begin, end, thread, _ = _columns(operators, Phase.FORWARD)
    order = np.lexsort((-end, begin, thread))
    outer = order[_outermost(begin[order], end[order], thread[order])]
    return begin[outer], end[outer], thread[outer]


LEAST_REPEATS = 3
"""Of a sequence of collectives before it is taken for a step."""
_MOST_PERIOD = 100_000
NO_STEP = -1


class Step(NamedTuple):
    """A step as the trace numbers it, in microseconds."""

    number: int
    begin: float
    end: float


class Steps(NamedTuple):
    """The steps of one trace, in order of time."""

    number: NDArray[np.int64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    by_launch: bool
    """Times are of the host, where kernels are launched; else of the place where they run."""
    source: str
    """Name of what showed them; empty for the profiler's own annotation."""

    def of(self, moments: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the index of the step of each moment, NO_STEP for none."""
        place = np.searchsorted(self.begin, moments, side="right") - 1
        inside = (place >= 0) & (moments <= self.end[np.maximum(place, 0)])
        return np.where(inside, place, NO_STEP)


def steps_of(
    annotated: Sequence[Step],
    on_device: Sequence[Step],
    optimizer_ends: NDArray[np.float64],
    keys: Sequence[tuple[float, float, object]],
) -> Steps | None:
    """Return the steps of a trace; None where nothing shows them.

    annotated, on_device: those that the profiler annotates, on the host and on the device.
    keys: begin, end and identity of each collective, in order of time.
    """
    if annotated:
        return _annotated(annotated, by_launch=True)
    if on_device:
        return _annotated(on_device, by_launch=False)
    if len(optimizer_ends) >= LEAST_REPEATS:
        # What precedes the first end may be part of a step only.
        return _between(optimizer_ends, by_launch=True, source="calls of the optimizer")
    period = _period([each[2] for each in keys])
    if period is None:
        return None
    ends = np.array([each[1] for each in keys], dtype=np.float64)
    return _between(ends[period - 1 :: period], by_launch=False, source="repeats of the collectives")


def _annotated(steps: Sequence[Step], *, by_launch: bool) -> Steps:
    """Return the steps, each number once: some come again, as on a second thread or stream."""
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
    """Return the shortest sequence that repeats over all keys, at least LEAST_REPEATS times, or None."""
    numbers: dict[object, int] = {}
    values = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    for period in range(1, min(len(values) // LEAST_REPEATS, _MOST_PERIOD) + 1):
        if values[period] == values[0] and (values[period:] == values[:-period]).all():
            return period
    return None
