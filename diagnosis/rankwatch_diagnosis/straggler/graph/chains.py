"""What each rank does one after the other, and how exactly clocks tell it."""

from __future__ import annotations

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Ints
from rankwatch_diagnosis.operations.table import NO_ROW, OperationTable

_OVERLAP_SHARE = 0.1
_OVERLAP_SECONDS = 5e-4
"""Part of a row, and seconds, by which the row behind it may begin early and still come after it: timers of a
device and of its host disagree by 0.14 ms in real jobs. What overlaps for longer goes on at the same time."""
_DRIFT = 5e-5
"""Seconds by which two timers of one host part in a second; a row may last half a minute."""
ROUNDING_SECONDS = 2e-6
"""Start and duration rounded to a microsecond each. Seconds since 1970 are exact to 0.24 us as it is."""
_SECONDS = 2e-3
"""Members of one collective leave it 0.3 ms apart in real jobs, and clocks drift by 2 ms in a long step."""
_SHARE_OF_STEP = 0.01
"""In a short step 2 ms would be much."""


def chain(table: OperationTable) -> tuple[Ints, Floats]:
    """Return by row the row of its rank and step that ended last before it began, -1 for none; and the
    seconds between the two, which are a little less than 0 where clocks let them overlap.
    """
    order = table.order
    start, rank, step = table.start_seconds[order], table.rank[order], table.step[order]
    seconds = table.duration_seconds[order]
    end = start + seconds
    first = np.r_[True, (rank[1:] != rank[:-1]) | (step[1:] != step[:-1])]
    rounding = ROUNDING_SECONDS + 4.0 * float(np.spacing(np.abs(table.start_seconds).max()))
    overlap = np.maximum(np.minimum(_OVERLAP_SHARE * seconds, _OVERLAP_SECONDS), _DRIFT * seconds)
    surely_ended = end - overlap
    before = np.arange(len(order)) - 1
    if not (first[1:] | (start[1:] + rounding >= surely_ended[:-1])).all():
        before = _ended_before(start + rounding, surely_ended, np.cumsum(first) - 1)
    before = np.where(first, NO_ROW, before)
    pause = np.where(before >= 0, np.maximum(start - end[before], -overlap[before]), 0.0)
    found = np.full(len(order), NO_ROW, dtype=np.int64)
    found[order] = np.where(before >= 0, order[before], NO_ROW)
    pauses = np.zeros(len(order))
    pauses[order] = pause
    return found, pauses


def _ended_before(start: Floats, end: Floats, chain: Ints) -> Ints:
    """Find by row, in order of start, the row of its chain that ended last before it began."""
    count = len(start)
    position = np.arange(count)
    # The sort is stable: of an end and a start at the same time the end comes first.
    merged = np.lexsort((np.r_[end, start], np.r_[chain, chain]))
    asking = merged >= count
    ended = merged[~asking]
    last = np.empty(count, dtype=np.int64)
    last[merged[asking] - count] = np.cumsum(~asking)[asking] - 1
    before = np.where(last >= 0, ended[np.maximum(last, 0)], NO_ROW)
    # A row without duration has ended when it begins.
    before = np.where(before >= position, position - 1, before)
    return np.where((before >= 0) & (chain[before] == chain), before, NO_ROW)


def clock_seconds(table: OperationTable) -> float:
    """Return the seconds by which one moment may differ between ranks of one clock."""
    span = table.median_span_seconds()
    return _SECONDS if np.isnan(span) else min(_SECONDS, _SHARE_OF_STEP * span)
