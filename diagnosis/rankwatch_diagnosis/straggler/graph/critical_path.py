"""The critical path of a step: the chain of rows, from its begin to its end, that made it as long as it is.

It is found backwards in the replay. Each row began when the last of those arrived that meet in it, or when
the row that it waits for had ended. Whoever was last is on the path, and so is what came before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Ints
from rankwatch_diagnosis.operations.table import NO_ROW
from rankwatch_diagnosis.straggler.graph.replay import Replay

_SAME_SECONDS = 1e-9
"""Of two that arrived together, the row's own rank is taken."""


class Timeline(NamedTuple):
    """When rows happen in the replay, in seconds since their step began; by row of the table."""

    arrives: Floats
    """Its rank has come to it: what follows until it begins is a wait for other ranks."""
    begins: Floats
    ends: Floats


class Stretch(NamedTuple):
    """A row on the critical path."""

    row: int
    since: float
    """End of what was on the path before it, on whichever rank; until the row begins its rank pauses."""
    begins: float
    ends: float


def timeline(replay: Replay, seconds: Floats) -> Timeline:
    """Return the replay with these seconds by row, as `Replay.step_seconds` takes them."""
    ends = replay.row_ends(seconds)
    arrives = np.where(replay.before >= 0, ends[replay.before], 0.0) + replay.pauses
    # A message may be over when its rank comes to wait for it.
    begins = np.maximum(ends - seconds, np.minimum(arrives, ends))
    return Timeline(np.minimum(arrives, begins), begins, ends)


def critical_path(replay: Replay, times: Timeline, rows: Ints) -> list[Stretch]:
    """Find the critical path of the step that these rows are, in the order of time and without a gap."""
    members = _members(replay, rows)
    row = int(rows[np.argmax(times.ends[rows])]) if rows.size else NO_ROW
    found: list[Stretch] = []
    seen: set[int] = set()
    while row >= 0 and row not in seen:  # a guess of the graph that was wrong may have left a cycle
        seen.add(row)
        last = _came_last(replay, times, row, members)
        since = float(times.ends[last]) if last >= 0 else 0.0
        found.append(Stretch(row, since, float(times.begins[row]), float(times.ends[row])))
        row = last
    return found[::-1]


def _members(replay: Replay, rows: Ints) -> dict[int, list[int]]:
    """Group the rows by the instance in which they meet."""
    members: dict[int, list[int]] = {}
    for row, instance in zip(rows.tolist(), replay.communication.together[rows].tolist(), strict=True):
        if instance >= 0:
            members.setdefault(instance, []).append(row)
    return members


def _came_last(replay: Replay, times: Timeline, row: int, members: dict[int, list[int]]) -> int:
    """Return the row whose end let this one begin, -1 where nothing came before."""
    communication = replay.communication
    together = members.get(int(communication.together[row]), [row])
    arriving = [row, *(each for each in together if each != row)]
    arriving += [int(each) for each in communication.meets[arriving] if each >= 0]
    last, latest = int(replay.before[row]), float(times.arrives[row])
    for each in arriving[1:]:
        enqueued_after, came = _came(replay, times, each)
        if came > latest + _SAME_SECONDS:
            last, latest = enqueued_after, came
    for each in communication.waits_for[together].tolist():
        if each >= 0 and times.ends[each] > latest + _SAME_SECONDS:
            last, latest = each, float(times.ends[each])
    return last


def _came(replay: Replay, times: Timeline, row: int) -> tuple[int, float]:
    """Return the row after which a row was enqueued, and when that was."""
    after = int(replay.enqueued_after[row])
    if after == replay.before[row]:
        return after, float(times.arrives[row])
    return after, float(times.ends[after]) if after >= 0 else 0.0
