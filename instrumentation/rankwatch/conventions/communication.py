"""Metrics of collectives."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge
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
        "Collectives, sends and receives completed, by process group and operation. From the black box; for "
        "NCCL, whose completions that does not see, from the flight recorder: a sample where entries were "
        "missed, as in the next three.",
    ),
    counter(
        "rankwatch_collective_bytes_total",
        "bytes",
        _COLLECTIVE,
        "Bytes of the rank's input to these.",
    ),
    counter(
        "rankwatch_collective_seconds_total",
        "seconds",
        _COLLECTIVE,
        "Time from enqueue to completion of these, waiting for other ranks included; of NCCL the time on the "
        "GPU, where its timing is switched on.",
    ),
    counter(
        "rankwatch_collective_wait_seconds_total",
        "seconds",
        _COLLECTIVE,
        "Time in collectives beyond that of the last arriver among the group's ranks on this node: waiting "
        "for others. Sends and receives have none; nor has a rank that is alone of its group on the node.",
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
        "Time of the last arriver among the group's ranks on this node in these collectives: the transfer, "
        "and the wait for ranks of other nodes where those arrived later. The least over the nodes counts.",
    ),
    counter(
        "rankwatch_collective_bus_bytes_total",
        "bytes",
        _NODE_COLLECTIVE,
        "Bytes of these collectives times the bus factor of nccl-tests, for example 2(n-1)/n for all_reduce; "
        "over the transfer seconds it is the bus bandwidth.",
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
        "Number of the last collective completed in the group, likewise. From the black box where it sees "
        "completions: not of NCCL.",
    ),
    gauge(
        "rankwatch_collective_oldest_incomplete_timestamp_seconds",
        "seconds",
        _PLACE,
        "Unix time at which the oldest collective, send or receive of the group that is not complete was "
        "enqueued; no series where all are complete.",
    ),
    gauge(
        "rankwatch_collective_oldest_incomplete_signature",
        "1",
        _PLACE,
        "Number of 32 bits made of operation, elements and types of the group's oldest collective that is "
        "not complete (of the operation alone where sizes may differ, as in all_to_all). Ranks that differ "
        "at the same place call different collectives. From the flight recorder.",
    ),
    counter(
        "rankwatch_flight_recorder_pulls_total",
        "1",
        (*_RANK, Label.OUTCOME),
        "Pulls of the rank's flight recorder by outcome (success, failure).",
    ),
    counter("rankwatch_flight_recorder_entries_total", "1", _RANK, "Flight-recorder entries merged."),
    counter(
        "rankwatch_flight_recorder_entries_missed_total",
        "1",
        _RANK,
        "Flight-recorder entries that were overwritten before they were read, or could not be understood.",
    ),
)
