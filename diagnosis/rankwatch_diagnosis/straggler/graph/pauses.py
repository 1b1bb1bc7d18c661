"""Pauses between the operations of a rank: which of them are waits for other ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.arrays import Floats
from rankwatch_diagnosis.straggler.graph.meetings import Meetings
from rankwatch_diagnosis.straggler.graph.messages import NONE, point_to_point


def without_waits(
    pauses: Floats, known: NDArray[np.bool_], table: OperationTable, meetings: Meetings
) -> Floats:
    """Seconds of pause before each row that are the rank's own; `known` says where there is a row before.

    Most recorders begin a collective when the rank comes to it, so its duration holds the wait. Some begin it
    when the last member has come: then members take equally long, and the wait lies in the pause before.
    """
    members = np.flatnonzero((meetings.collective >= 0) & known)
    instance = meetings.collective[members]
    count = meetings.collectives
    in_pauses = _spread(pauses[members], instance, count)
    if in_pauses <= _spread(table.duration_seconds[members], instance, count):
        return pauses
    own = pauses.copy()
    shortest = np.full(count, np.inf)
    np.minimum.at(shortest, instance, pauses[members])
    own[members] = shortest[instance]  # the last arriver waits for nobody
    _, receives = point_to_point(table)
    own[receives & (meetings.waits_for != NONE)] = 0.0
    return own


def _spread(seconds: Floats, instance: NDArray[np.int64], count: int) -> float:
    """Longest less shortest of the members, over all instances."""
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, instance, seconds)
    np.maximum.at(high, instance, seconds)
    seen = np.isfinite(low)
    return float(np.sum(high[seen] - low[seen]))
