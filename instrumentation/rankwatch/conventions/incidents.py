"""Metrics of incidents (runs of this node that stall or lose a rank), and of the evidence kept of them."""

from __future__ import annotations

from enum import StrEnum

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label


class IncidentKind(StrEnum):
    """What kind of incident it is."""

    STALL = "stall"
    """No live rank of the node made progress for longer than its own history allows."""
    LOST_RANK = "lost_rank"
    """The process of a rank is gone without an end record."""


class EvidenceFault(StrEnum):
    """Why a bundle, or a part of one, is missing."""

    NO_SPACE = "no_space"
    """The file system is full or nearly full."""
    SIZE = "size"
    """It would have made the bundle larger than it may be."""
    WRITE = "write"
    BLACK_BOX = "black_box"
    FLIGHT_RECORDER = "flight_recorder"
    STACKS = "stacks"
    LOG_LINES = "log_lines"
    PROFILE = "profile"
    DUMP = "dump"
    VERDICT = "verdict"
    TOO_SOON = "too_soon"
    """The run had a bundle shortly before."""
    BUSY = "busy"
    """Too many incidents at once, or the incident is too old to collect evidence of it."""


INCIDENTS = (
    counter(
        "rankwatch_incidents_total",
        "1",
        (Label.RUN, Label.KIND),
        "Incidents: a run of this node stalled (stall) or lost a rank (lost_rank), by its black boxes. A run "
        "has one incident at a time.",
    ),
    gauge(
        "rankwatch_incident_open",
        "1",
        (Label.RUN, Label.KIND),
        "1 while an incident is open, for at least a minute; 0 otherwise. It ends when progress resumes or "
        "the run ends.",
    ),
    gauge(
        "rankwatch_incident_root_cause",
        "1",
        (Label.RUN, Label.RANK, Label.STATE, Label.PHASE),
        "1 for a rank that the verdict on the evidence names, up to 16 of an incident, while it is open. "
        "`state` is that of the run (hang, desync, ...), lost, or stopped where no evidence is kept and a "
        "signal stopped the process; `phase` is the open phase of the rank, empty where it is not known.",
    ),
    gauge("rankwatch_evidence_bundles", "1", (), "Evidence bundles kept on this node."),
    gauge(
        "rankwatch_evidence_bundle_timestamp_seconds",
        "seconds",
        (Label.RUN,),
        "Unix time at which the incident of a run's newest evidence bundle was opened.",
    ),
    counter(
        "rankwatch_evidence_errors_total",
        "1",
        (Label.REASON,),
        "Missing bundles and parts of bundles: no_space, size, write, black_box, flight_recorder, stacks, "
        "log_lines, profile, dump, verdict; too_soon and busy if no bundle was tried. "
        "The manifest of a bundle lists what it lacks.",
    ),
)
