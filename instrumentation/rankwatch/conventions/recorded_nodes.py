"""Recorded series of nodes that have vanished, and of the ranks that were there."""

from __future__ import annotations

from rankwatch.conventions.declaration import RecordedSeries, recorded
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)
_NODE = (*_RUN, Label.NODE)

RECORDED_NODES: tuple[RecordedSeries, ...] = (
    recorded(
        "run_node:rankwatch_ranks_seen_timestamp_seconds:max",
        _NODE,
        "Unix time at which ranks of the run were last seen running on the node; 0 once they have left it.",
    ),
    recorded(
        "run_node:rankwatch_ranks_silent_timestamp_seconds:max",
        _NODE,
        "Unix time at which ranks of the run were last seen running on a node that is silent since.",
    ),
    recorded(
        "rank:rankwatch_rank_silent_step:last",
        (*_RUN, Label.RANK, Label.NODE),
        "Last known step of a rank that ran on a silent node and runs nowhere else.",
    ),
    recorded(
        "run:rankwatch_checkpoint_last_good_step:max",
        _RUN,
        "Step of the run's last good checkpoint, remembered while a node of the run is silent.",
    ),
    recorded(
        "run_node:rankwatch_ranks_lost_timestamp_seconds:max",
        _NODE,
        "Unix time at which ranks of the run were last seen running on a silent node, where the run stands "
        "still or is not seen at all.",
    ),
    recorded(
        "run:rankwatch_nodes_lost:count",
        _RUN,
        "Lost nodes of a run that has lost most of them, or more than are named.",
    ),
)
