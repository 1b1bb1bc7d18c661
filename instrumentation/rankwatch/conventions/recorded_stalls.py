"""Recorded series of stalled runs: where the ranks stand, and which one the run waits for."""

from __future__ import annotations

from rankwatch.conventions.declaration import RecordedSeries, recorded
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)
_RANK = (*_RUN, Label.RANK, Label.NODE)
_GROUP = (Label.GROUP, Label.MEMBERS)
_MEMBER = (*_RANK, *_GROUP)

RECORDED_STALLS: tuple[RecordedSeries, ...] = (
    recorded(
        "run:rankwatch_stall_seconds:max",
        _RUN,
        "Time without progress of a run that is past its timeout; no series for all others.",
    ),
    recorded("rank:rankwatch_stall_alive:bool", _RANK, "1 for a rank of a stalled run that starts or runs."),
    recorded(
        "rank:rankwatch_stall_waited:seconds",
        _RANK,
        "How long a rank of a stalled run has waited for others, or had when it ended; only of long waits.",
    ),
    recorded(
        "rank:rankwatch_rank_lost:waited_seconds",
        _RANK,
        "How long a rank that is lost had waited for others when it ended; 0 if it did not wait.",
    ),
    recorded(
        "rank_group:rankwatch_collective_last_enqueued:stalled",
        _MEMBER,
        "Number of the last collective the rank has enqueued in the group; only of stalled runs.",
    ),
    recorded(
        "rank_group:rankwatch_collective_oldest_incomplete_timestamp_seconds:stalled",
        _MEMBER,
        "Unix time since which the rank waits in the group; only of stalled runs.",
    ),
    recorded(
        "rank:rankwatch_stall_waiting_timestamp_seconds:min",
        _RANK,
        "Unix time since which the rank waits in any process group; only of stalled runs.",
    ),
    recorded(
        "group:rankwatch_stall_waiting:share",
        (*_RUN, *_GROUP),
        "Ranks that wait in the process group over those whose numbers are known; only of stalled runs.",
    ),
    recorded(
        "rank_group:rankwatch_collectives_behind:stalled",
        _MEMBER,
        "Collectives the rank has not enqueued while another rank of the group has, and some wait there.",
    ),
    recorded(
        "rank:rankwatch_stall_disappeared:bool",
        _RANK,
        "1 for a rank that has left a stalled run, or sends nothing any more, while others wait.",
    ),
    recorded(
        "rank:rankwatch_stall_not_in_collective:bool",
        _RANK,
        "1 for a live rank of a stalled run that waits in no collective and called none recently.",
    ),
    recorded(
        "rank:rankwatch_stall_missing:bool",
        (*_RANK, Label.REASON),
        "1 for a rank that others wait for while it waits for nobody (reason: disappeared, not_enqueued, "
        "not_in_collective).",
    ),
    recorded(
        "run:rankwatch_stall_all_waiting:count",
        _RUN,
        "Live ranks of a stalled run; only where all of them wait and none is missing.",
    ),
    recorded(
        "rank_group:rankwatch_collective_last_completed:stalled",
        _MEMBER,
        "Number of the last collective the rank has completed, by its flight recorder; only of stalled runs.",
    ),
    recorded(
        "rank_group:rankwatch_collective_oldest_incomplete_signature:stalled",
        _MEMBER,
        "What the rank calls at the place where most of its group stand; only where every rank waits.",
    ),
    recorded(
        "rank_group:rankwatch_collectives_mismatched:bool",
        (*_MEMBER, Label.REASON),
        "1 for a rank that differs from the majority of its group (reason: operation, number).",
    ),
    recorded(
        "run:rankwatch_collectives_desynchronised:bool",
        _RUN,
        "1 for a stalled run whose ranks wait in different collectives.",
    ),
    recorded(
        "rank:rankwatch_stall_unresponsive:bool",
        _RANK,
        "1 for a live rank of a stalled run whose flight recorder answered before and no longer does.",
    ),
    recorded(
        "rank:rankwatch_stall_root_cause:bool",
        (*_RANK, Label.REASON),
        "1 for a rank that a stalled run waits for (reason: disappeared, not_enqueued, not_in_collective, "
        "unresponsive).",
    ),
)
