"""Recorded series of collectives: who waits, for how long, and how fast the groups transfer."""

from __future__ import annotations

from rankwatch.conventions.declaration import Record
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)
_GROUP = (*_RUN, Label.GROUP, Label.MEMBERS)

COLLECTIVE_RECORDS: tuple[Record, ...] = (
    Record(
        name="rank:rankwatch_collective_wait:share",
        labels=(*_RUN, Label.RANK, Label.NODE, Label.STAGE),
        help="Seconds the rank waited in collectives for other ranks of its node, over the seconds of its "
        "steps; the least waiter is the one the others wait for. Collectives that overlap count each, so "
        "it may be above 1.",
    ),
    Record(
        name="rank_group:rankwatch_collective_wait_seconds:mean",
        labels=(*_RUN, Label.RANK, Label.NODE, Label.GROUP, Label.MEMBERS),
        help="Mean seconds per collective that the rank waited for the last of its node.",
    ),
    Record(
        name="group:rankwatch_collective_wait_seconds:skew",
        labels=_GROUP,
        help="Mean seconds per collective by which the first rank of the group arrives before the last one "
        "of its node; the largest over the nodes.",
    ),
    Record(
        name="group:rankwatch_collective_bus_bandwidth:max",
        labels=(*_GROUP, Label.OPERATION, Label.SIZE_CLASS),
        help="Bytes per second on the bus while the group transfers, by the formulas of nccl-tests; the "
        "largest over the nodes, because the last arriver's node waits for none.",
    ),
)
