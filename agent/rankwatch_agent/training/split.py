"""Splits a step into its parts, each moment counted once, so that the parts sum to the step.

A step's *communication* is the time the training thread was blocked in collectives:

- a blocking collective blocks from its enqueue to its completion, and one that a thread was seen to wait
  for from the beginning of the wait;
- other asynchronous ones, such as the gradient buckets of DDP, run under the backward pass; within one
  phase the thread is taken to be blocked from the last enqueue (nothing is left to compute) to the
  last completion, at most to the end of the phase.

What is left is the rank's own work. It names a straggler; the step's duration names nobody, because
collectives equalise it over the ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from operator import itemgetter

from rankwatch.conventions import COMMUNICATION, OTHER

Interval = tuple[float, float, str]
"""A phase: its start, end and name; seconds on the monotonic clock. A plain tuple, as the next one, because
there are thousands a second."""
Collective = tuple[float, float, bool]
"""A collective as the training thread sees it: enqueued, completed, and whether the caller blocks."""

_COMPLETED = itemgetter(1)


def split_step(
    start: float,
    end: float,
    phases: Sequence[Interval],
    collectives: Sequence[Collective],
    take: Callable[[Sequence[Interval], Sequence[float]], None] | None = None,
) -> dict[str, float]:
    """Seconds by phase, `communication` and `other` included; they sum to `end - start`.

    phases: in the order of their ends, each within the step; they nest or follow one another.
    collectives: enqueued within the step.
    take: takes the phases and the seconds of every single one, what lies inside it and blocked time left out.
    """
    blocked = _Blocked(_union(_blocked(start, end, phases, collectives))) if collectives else _NOTHING
    first, last = blocked.first, blocked.last
    parts: dict[str, float] = {}
    alone: list[float] = []
    open_children: list[tuple[float, float]] = []  # (start, own time with what lies inside)
    last_begun = -inf
    # Comparisons in place of `max`, here and below: half the cost, some thousand times a second.
    for begun, ended, name in phases:
        own = ended - begun
        if ended > first and begun < last:
            own -= blocked.between(begun, ended)
        inside = 0.0
        if last_begun >= begun:
            while open_children and open_children[-1][0] >= begun:
                inside += open_children.pop()[1]
        exclusive = own - inside if own > inside else 0.0
        open_children.append((begun, own if exclusive else inside))
        last_begun = begun
        parts[name] = parts.get(name, 0.0) + exclusive
        alone.append(exclusive)
    if take is not None:
        take(phases, alone)
    waited = blocked.total
    parts[COMMUNICATION] = parts.get(COMMUNICATION, 0.0) + waited
    parts[OTHER] = parts.get(OTHER, 0.0) + max(0.0, end - start - sum(alone) - waited)
    return parts


def _blocked(
    start: float, end: float, phases: Sequence[Interval], collectives: Sequence[Collective]
) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    overlapped: list[Collective] = []
    for each in collectives:
        if each[2]:
            found.append((each[0], min(each[1], end)))
        else:
            overlapped.append(each)
    if overlapped:
        found += _overlapped(end, phases, sorted(overlapped))
    return [(a if a > start else start, b) for a, b in found if b > a]


def _overlapped(
    end: float, phases: Sequence[Interval], ordered: Sequence[Collective]
) -> list[tuple[float, float]]:
    """From the last enqueue to the last completion of those enqueued in one phase and in none inside it."""
    first, latest = ordered[0][0], ordered[-1][0]
    # Of the phases only those that can hold an enqueue: most of a step's do not.
    to_come = [(a, b) for a, b, _ in phases if b > first and a <= latest]
    limits = [b for a, b in to_come if a <= first and b > latest]
    if len(limits) == len(to_come):  # each phase holds all of them, as in DDP
        completed = max(map(_COMPLETED, ordered))
        return [(latest, min(completed, *limits, end))]
    to_come.sort(reverse=True)
    last: dict[float, tuple[float, float]] = {}  # end of a phase -> (last enqueue, last completion)
    open_ends: list[float] = []  # a heap: of the phases that hold a moment, the innermost ends first
    for enqueued, completed, _ in ordered:
        while to_come and to_come[-1][0] <= enqueued:
            heappush(open_ends, to_come.pop()[1])
        while open_ends and open_ends[0] <= enqueued:
            heappop(open_ends)
        limit = open_ends[0] if open_ends else end
        before = last.get(limit)
        if before is None:
            last[limit] = (enqueued, completed)
        else:
            last[limit] = (enqueued, completed if completed > before[1] else before[1])
    return [(enqueued, min(completed, limit)) for limit, (enqueued, completed) in last.items()]


def _union(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for a, b in sorted(intervals):
        if merged and a <= merged[-1][1]:
            if b > merged[-1][1]:
                merged[-1] = (merged[-1][0], b)
        else:
            merged.append((a, b))
    return merged


class _Blocked:
    """Disjoint intervals in order, asked for the time they cover."""

    def __init__(self, merged: list[tuple[float, float]]) -> None:
        self._starts = [a for a, _ in merged]
        self._ends = [b for _, b in merged]
        self._before = list(accumulate((b - a for a, b in merged), initial=0.0))
        self.total = self._before[-1]
        self.first = self._starts[0] if merged else inf
        self.last = self._ends[-1] if merged else -inf

    def between(self, start: float, end: float) -> float:
        """Seconds covered from `start` to `end`."""
        return self._until(end) - self._until(start)

    def _until(self, moment: float) -> float:
        index = bisect_left(self._starts, moment)  # intervals that begin before
        if not index:
            return 0.0
        return self._before[index] - max(0.0, self._ends[index - 1] - moment)


_NOTHING = _Blocked([])
