"""Metrics of collectives."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)
_GROUP = (*_RANK, Label.GROUP)
_COLLECTIVE = (*_GROUP, Label.OPERATION)

COLLECTIVES = (
    counter(
        "rankwatch_collectives_total",
        "1",
        _COLLECTIVE,
        "Collectives completed, by process group and operation.",
    ),
    counter(
        "rankwatch_collective_bytes_total",
        "bytes",
        _COLLECTIVE,
        "Bytes of the rank's input to completed collectives.",
    ),
    counter(
        "rankwatch_collective_seconds_total",
        "seconds",
        _COLLECTIVE,
        "Time from enqueue to completion of collectives, waiting for other ranks included.",
    ),
    gauge(
        "rankwatch_collective_last_enqueued",
        "1",
        _GROUP,
        "Sequence number of the last collective enqueued, from PyTorch's flight recorder.",
    ),
    gauge(
        "rankwatch_collective_last_completed",
        "1",
        _GROUP,
        "Sequence number of the last collective completed, from PyTorch's flight recorder.",
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
        "Flight-recorder entries overwritten before they were read.",
    ),
)
