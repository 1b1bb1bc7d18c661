"""Metrics of collectives, and of NCCL's communicators as NCCL RAS reports them."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)
_GROUP = (Label.GROUP, Label.MEMBERS)
_PLACE = (*_RANK, *_GROUP, Label.SOURCE)
_COLLECTIVE = (*_RANK, *_GROUP, Label.OPERATION)
_NODE_COLLECTIVE = (Label.RUN, *_GROUP, Label.OPERATION, Label.SIZE_CLASS)

COLLECTIVES = (
    counter(
        "rankwatch_collectives_total",
        "1",
        _COLLECTIVE,
        "Completed collectives, sends and receives, by process group and operation. From the black box, or "
        "for NCCL, whose completions it does not see, from the flight recorder: then it is a sample if "
        "entries were missed, like bytes, seconds and wait.",
    ),
    counter(
        "rankwatch_collective_bytes_total",
        "bytes",
        _COLLECTIVE,
        "Input bytes of the rank to completed collectives, sends and receives.",
    ),
    counter(
        "rankwatch_collective_seconds_total",
        "seconds",
        _COLLECTIVE,
        "Time from enqueue to completion of collectives, sends and receives, waiting for other ranks "
        "included; for NCCL the time on the GPU, where NCCL timing is on.",
    ),
    counter(
        "rankwatch_collective_wait_seconds_total",
        "seconds",
        _COLLECTIVE,
        "Time in collectives that the rank waited for others: beyond the time of the last arriver among the "
        "group's ranks on this node. Sends and receives have none, nor does a rank that is alone of its "
        "group on the node.",
    ),
    counter(
        "rankwatch_collective_transfers_total",
        "1",
        _NODE_COLLECTIVE,
        "Collectives completed by all of the group's ranks on this node.",
    ),
    counter(
        "rankwatch_collective_transfer_seconds_total",
        "seconds",
        _NODE_COLLECTIVE,
        "Time of the last arriver among the group's ranks on this node, in collectives that all of them "
        "completed: the transfer, and waiting for ranks of other nodes that arrived later. The minimum over "
        "the nodes is the transfer.",
    ),
    counter(
        "rankwatch_collective_bus_bytes_total",
        "bytes",
        _NODE_COLLECTIVE,
        "Bytes of collectives that all of the group's ranks on this node completed, times the bus factor of "
        "nccl-tests, for example 2(n-1)/n for all_reduce. Divided by the transfer seconds it is the bus "
        "bandwidth.",
    ),
    gauge(
        "rankwatch_collective_last_enqueued",
        "1",
        _PLACE,
        "Number of the last collective enqueued in the group, from 1; sends and receives do not count. "
        "Comparable between ranks within one source (black_box, flight_recorder).",
    ),
    gauge(
        "rankwatch_collective_last_completed",
        "1",
        _PLACE,
        "Number of the last collective completed in the group, counted as those enqueued. From the black "
        "box where it sees completions, which it does not for NCCL.",
    ),
    gauge(
        "rankwatch_collective_oldest_incomplete_timestamp_seconds",
        "seconds",
        _PLACE,
        "Unix time at which the oldest collective, send or receive of the group that is not complete was "
        "enqueued; no series where all are complete. From the flight recorder only where the black box sees "
        "no completions.",
    ),
    gauge(
        "rankwatch_collective_oldest_incomplete_signature",
        "1",
        _PLACE,
        "Number of 32 bits made of operation, elements and types of the group's oldest incomplete "
        "collective (of the operation alone where sizes may differ, as in all_to_all). Ranks that differ at "
        "the same place call different collectives. From the flight recorder.",
    ),
    counter(
        "rankwatch_flight_recorder_pulls_total",
        "1",
        (*_RANK, Label.OUTCOME),
        "Pulls of the rank's flight recorder by outcome (success, failure; capturing: not asked, because the "
        "rank captures a CUDA graph).",
    ),
    gauge(
        "rankwatch_flight_recorder_silent_seconds",
        "seconds",
        _RANK,
        "Time since the rank's flight recorder last answered, 0 if it answered the last question; only of a "
        "rank that once answered, while it is late.",
    ),
    counter("rankwatch_flight_recorder_entries_total", "1", _RANK, "Flight-recorder entries merged."),
    counter(
        "rankwatch_flight_recorder_entries_missed_total",
        "1",
        _RANK,
        "Flight-recorder entries that were overwritten before they were read, or could not be understood.",
    ),
)

_SERVICE = (Label.ADDRESS, Label.RUN)
_COMMUNICATOR = (*_SERVICE, Label.COMMUNICATOR)
_COMMUNICATOR_RANK = (*_COMMUNICATOR, Label.COMMUNICATOR_RANK, Label.RANK)

NCCL_RAS = (
    gauge(
        "rankwatch_nccl_ras_up",
        "1",
        _SERVICE,
        "1 if NCCL's RAS service answered with a status, 0 if it listens but gave none. No series where "
        "nothing listens. The run is empty where it is unclear which run the service belongs to, as for one "
        "on this node that gave none.",
    ),
    info("rankwatch_nccl_info", (*_SERVICE, Label.VERSION), "Version of NCCL, as RAS reports it; always 1."),
    gauge(
        "rankwatch_nccl_ras_timeouts",
        "1",
        _SERVICE,
        "Connections between processes that RAS gave up while it gathered its last answer.",
    ),
    gauge(
        "rankwatch_nccl_communicators",
        "1",
        (*_SERVICE, Label.STATE),
        "NCCL communicators by state: healthy, unknown, suspect, stuck, error, dead.",
    ),
    gauge(
        "rankwatch_nccl_processes_missing",
        "1",
        (*_SERVICE, Label.REASON),
        "Processes of the job without data in RAS: dead (not reached for 60 s), unresponsive, left (without "
        "a communicator that others have).",
    ),
    gauge(
        "rankwatch_nccl_communicator_state",
        "1",
        (*_COMMUNICATOR, Label.STATE, Label.REASON),
        "1 for the state of a communicator and its reason, from the launches of its ranks over several "
        "answers: desync if they differ and stay so, below_launch if they are equal and the job stands "
        "still. For the 32 worst and largest communicators.",
    ),
    gauge("rankwatch_nccl_communicator_ranks", "1", _COMMUNICATOR, "Number of ranks of a communicator."),
    gauge(
        "rankwatch_nccl_communicator_ranks_missing",
        "1",
        _COMMUNICATOR,
        "Ranks of a communicator without data in RAS.",
    ),
    gauge(
        "rankwatch_nccl_communicator_ranks_behind",
        "1",
        _COMMUNICATOR,
        "Ranks of a communicator that have launched fewer collectives than another. Normal for short times.",
    ),
    gauge(
        "rankwatch_nccl_communicator_launch_spread",
        "1",
        _COMMUNICATOR,
        "Launches between the rank furthest ahead and the one furthest behind, for the kind of collective "
        "where they are most.",
    ),
    counter(
        "rankwatch_nccl_communicator_launches_total",
        "1",
        _COMMUNICATOR,
        "Collectives launched by the rank furthest ahead. NCCL 2.28.7 and newer report it.",
    ),
    gauge(
        "rankwatch_nccl_rank_launches_behind",
        "1",
        _COMMUNICATOR_RANK,
        "Launches by which a rank is behind, in a communicator that is suspect or worse. No series where "
        "more than eight ranks are behind. `rank` is the global rank, empty where unknown.",
    ),
    gauge(
        "rankwatch_nccl_rank_missing",
        "1",
        (*_COMMUNICATOR_RANK, Label.REASON),
        "1 for a rank without data in RAS, up to eight of a communicator.",
    ),
)
