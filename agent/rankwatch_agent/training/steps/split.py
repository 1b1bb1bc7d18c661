"""Splits a step into its parts, each moment counted once, so that the parts sum to the step.

This is the one splitter: the agent sums its parts while a run goes on, and the diagnosis makes rows of
operations from them. A step's *communication* is the time the training thread was blocked in collectives:

- A blocking collective blocks from its enqueue to its completion. One that a thread was seen to wait for
  blocks from the beginning of the wait.
- Other asynchronous ones, such as the gradient buckets of DDP, run under the backward pass. Within one phase
  the thread counts as blocked from the last enqueue (nothing is left to compute) to the last completion, at
  most to the end of the phase. Outside of phases it counts as blocked to the start of the next one.

The rest is the rank's own work. It names a straggler; the step's duration names nobody, because collectives
equalise it over the ranks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from operator import gt, itemgetter, sub

from rankwatch.conventions.vocabulary import COMMUNICATION, OTHER

Interval = tuple[float, float, str]
"""A phase: its start, end and name; seconds on the monotonic clock. A plain tuple, as the next ones, because
there are thousands a second."""
Collective = tuple[float, float, bool, *tuple[str, ...]]
"""A collective as the training thread sees it: enqueued, completed, whether the caller blocks. More items,
such as names, are the caller's own."""
MESSAGE = "message"
"""The first further item of a send or receive, where the caller tells them from collectives."""
Blocked = tuple[float, float, Collective]
"""Time in which the training thread was blocked: from, to, and the collective it was blocked in."""

_COMPLETED = itemgetter(1)


def split_step(
    start: float, end: float, phases: Sequence[Interval], collectives: Sequence[Collective]
) -> tuple[dict[str, float], list[float]]:
    """Return seconds by phase, which sum to `end - start`, and the own seconds of every single phase.

    The first include `communication` and `other`.

    phases: in the order of their ends, each within the step; they nest or follow one another.
    collectives: enqueued within the step.
    """
    blocked = blocked_times(start, end, phases, collectives) if collectives else []
    own = own_seconds(phases, blocked)
    waited = sum([b - a for a, b, _ in blocked]) if blocked else 0.0
    parts: dict[str, float] = {}
    for (_, _, name), seconds in zip(phases, own, strict=True):
        parts[name] = parts[name] + seconds if name in parts else seconds
    parts[COMMUNICATION] = parts.get(COMMUNICATION, 0.0) + waited
    parts[OTHER] = parts.get(OTHER, 0.0) + max(0.0, end - start - sum(own) - waited)
    return parts, own


def message_seconds(start: float, end: float, collectives: Sequence[Collective]) -> float:
    """Sum the seconds of a step blocked in sends and receives, each moment once: they come in batches.

    collectives: enqueued within the step.
    """
    messages = [(each[0], min(each[1], end), each) for each in collectives if MESSAGE in each]
    return sum([b - a for a, b, _ in _disjoint(start, sorted(messages))]) if messages else 0.0


def own_seconds(phases: Sequence[Interval], blocked: Sequence[Blocked]) -> list[float]:
    """Return the seconds of each phase without blocked time and without the phases inside it.

    phases: in the order of their ends.
    blocked: disjoint and in order.
    """
    if not phases:
        return []
    starts, ends, _ = zip(*phases, strict=True)
    if any(map(gt, ends, starts[1:])):  # ends are in order: if none reaches into the next one, none nests
        return _own_of_nested(phases, _Covered(blocked))
    # Whole columns in C take a third of the time of a loop, some thousand times a second.
    own = list(map(sub, ends, starts))
    for start, end, _ in blocked:
        for index in range(bisect_right(ends, start), bisect_left(starts, end)):
            left = own[index] - (min(end, ends[index]) - max(start, starts[index]))
            own[index] = left if left > 0.0 else 0.0
    return own


def _own_of_nested(phases: Sequence[Interval], covered: _Covered) -> list[float]:
    first, last = covered.first, covered.last
    found: list[float] = []
    open_children: list[tuple[float, float]] = []  # (start, own time with what lies inside)
    last_begun = -inf
    # Comparisons in place of `max`, here and below: half the cost.
    for begun, ended, _ in phases:
        own = ended - begun
        if ended > first and begun < last:
            own -= covered.between(begun, ended)
        inside = 0.0
        if last_begun >= begun:
            while open_children and open_children[-1][0] >= begun:
                inside += open_children.pop()[1]
        exclusive = own - inside if own > inside else 0.0
        open_children.append((begun, own if exclusive else inside))
        last_begun = begun
        found.append(exclusive)
    return found


def blocked_times(
    start: float, end: float, phases: Sequence[Interval], collectives: Sequence[Collective]
) -> list[Blocked]:
    """Return when the training thread was blocked from `start` to `end`: disjoint, in order."""
    found: list[Blocked] = []
    overlapped: list[Collective] = []
    for each in collectives:
        if each[2]:
            found.append((each[0], min(each[1], end), each))
        else:
            overlapped.append(each)
    if overlapped:
        found += _overlapped(end, phases, sorted(overlapped))
    return _disjoint(start, sorted(found))


def _overlapped(end: float, phases: Sequence[Interval], ordered: Sequence[Collective]) -> list[Blocked]:
    """Return the times from the last enqueue to the last completion of those enqueued in one phase and in
    none inside it."""
    first, latest = ordered[0][0], ordered[-1][0]
    # Of the phases only those that can hold an enqueue: most of a step's do not.
    to_come = [(a, b) for a, b, _ in phases if b > first and a <= latest]
    limits = [b for a, b in to_come if a <= first and b > latest]
    following = min((a for a, _, _ in phases if a > latest), default=end) if not limits else end
    if len(limits) == len(to_come):  # each phase holds all of them, as in DDP
        completed = max(ordered, key=_COMPLETED)
        return [(latest, min(completed[1], following, *limits, end), completed)]
    to_come.sort(reverse=True)
    last: dict[float, Blocked] = {}  # where it ends at most -> last enqueue, last completion
    open_ends: list[float] = []  # a heap: of the phases that hold a moment, the innermost ends first
    for each in ordered:
        enqueued, completes = each[0], each[1]
        while to_come and to_come[-1][0] <= enqueued:
            heappush(open_ends, to_come.pop()[1])
        while open_ends and open_ends[0] <= enqueued:
            heappop(open_ends)
        limit = open_ends[0] if open_ends else to_come[-1][0] if to_come else following
        before = last.get(limit)
        if before is None or completes > before[1]:
            last[limit] = (enqueued, completes, each)
        else:
            last[limit] = (enqueued, before[1], before[2])
    return [(enqueued, min(completes, limit), each) for limit, (enqueued, completes, each) in last.items()]


def _disjoint(start: float, ordered: Sequence[Blocked]) -> list[Blocked]:
    found: list[Blocked] = []
    until = start
    for each in ordered:
        a, b, collective = each
        if a >= until:
            if b >= a:
                found.append(each)
                until = b
        elif b > until:
            found.append((until, b, collective))
            until = b
    return found


class _Covered:
    """Disjoint intervals in order, asked for the time they cover."""

    def __init__(self, blocked: Sequence[Blocked]) -> None:
        self._starts = [a for a, _, _ in blocked]
        self._ends = [b for _, b, _ in blocked]
        self._before = list(accumulate([b - a for a, b, _ in blocked], initial=0.0))
        self.first = self._starts[0] if blocked else inf
        self.last = self._ends[-1] if blocked else -inf

    def between(self, start: float, end: float) -> float:
        """Return the seconds covered from `start` to `end`."""
        return self._until(end) - self._until(start)

    def _until(self, moment: float) -> float:
        index = bisect_left(self._starts, moment)  # intervals that begin before
        if not index:
            return 0.0
        return self._before[index] - max(0.0, self._ends[index - 1] - moment)
