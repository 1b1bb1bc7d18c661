"""Metrics out of NCCL's RAS service."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

_SERVICE = (Label.ADDRESS, Label.RUN)
_COMMUNICATOR = (*_SERVICE, Label.COMMUNICATOR)
_RANK = (*_COMMUNICATOR, Label.COMMUNICATOR_RANK, Label.RANK)

NCCL_RAS = (
    gauge(
        "rankwatch_nccl_ras_up",
        "1",
        _SERVICE,
        "1 where NCCL's RAS service answered with a status, 0 where it listens and gave none; no series "
        "where nothing listens. The run is empty where the service cannot be told to belong to one.",
    ),
    info("rankwatch_nccl_info", (*_SERVICE, Label.VERSION), "Version of NCCL, as RAS tells it; always 1."),
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
        "Processes of the job of which RAS knows nothing: dead (not reached for 60 s), unresponsive, left "
        "(without a communicator that others have).",
    ),
    gauge(
        "rankwatch_nccl_communicator_state",
        "1",
        (*_COMMUNICATOR, Label.STATE, Label.REASON),
        "1 for the state of a communicator and its reason, by the launches of its ranks over several answers "
        "of RAS: desync where they differ and stay so, below_launch where they are equal and the job stands. "
        "Of the 32 worst and largest communicators.",
    ),
    gauge("rankwatch_nccl_communicator_ranks", "1", _COMMUNICATOR, "Ranks a communicator was made with."),
    gauge(
        "rankwatch_nccl_communicator_ranks_missing",
        "1",
        _COMMUNICATOR,
        "Ranks of a communicator of which RAS knows nothing.",
    ),
    gauge(
        "rankwatch_nccl_communicator_ranks_behind",
        "1",
        _COMMUNICATOR,
        "Ranks of a communicator that have launched fewer collectives than another; normal for a moment.",
    ),
    gauge(
        "rankwatch_nccl_communicator_launch_spread",
        "1",
        _COMMUNICATOR,
        "Launches between the rank furthest ahead and the one furthest behind, of the kind of collective in "
        "which that is most.",
    ),
    counter(
        "rankwatch_nccl_communicator_launches_total",
        "1",
        _COMMUNICATOR,
        "Collectives launched by the rank furthest ahead; told by RAS from NCCL 2.28.7 on.",
    ),
    gauge(
        "rankwatch_nccl_rank_launches_behind",
        "1",
        _RANK,
        "Launches by which a rank is behind, in a communicator that is suspect or worse; no series where "
        "more than eight are. The rank is the global one, empty where RAS and black boxes do not tell it.",
    ),
    gauge(
        "rankwatch_nccl_rank_missing",
        "1",
        (*_RANK, Label.REASON),
        "1 for a rank of which RAS knows nothing, up to eight of a communicator.",
    ),
)
