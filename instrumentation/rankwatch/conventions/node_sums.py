"""What the rules need of all ranks of a run on a node, added up by the agent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rankwatch.conventions.declaration import gauge
from rankwatch.conventions.labels import Label
from rankwatch.conventions.vocabulary import LOSS, OTHER

_RUN = (Label.RUN,)

OF_RUNNING_RANKS: Mapping[str, str] = MappingProxyType(
    {
        "rankwatch_rank_info": "",
        "rankwatch_steps_total": "",
        "rankwatch_step_seconds_total": "",
        "rankwatch_step_local_seconds_total": "",
        "rankwatch_step_phase_seconds_total": OTHER,
        "rankwatch_progress_timestamp_seconds": "",
    }
)
"""Metrics that every rank in state running has; of some a label value without which there is none."""

OF_RANKS_THAT_HAD_THEM: Mapping[str, str] = MappingProxyType(
    {
        "rankwatch_scalar_nonfinite_total": LOSS,
        "rankwatch_loss_deviation": "",
        "rankwatch_checkpoint_operations_total": "save",
        "rankwatch_late_step_seconds_total": "",
        "rankwatch_step_variation_total": "local",
    }
)
"""Metrics that not every run has, but which must not vanish from a running rank that had them."""

NODE_SUMS = (
    gauge(
        "rankwatch_node_ranks",
        "1",
        (Label.RUN, Label.STATE),
        "Ranks of the run on this node by their state; a state without ranks has no series.",
    ),
    gauge(
        "rankwatch_node_ranks_reporting",
        "1",
        (Label.RUN, Label.NAME),
        "Ranks of the run on this node that have the metric of this name, of those that alerts depend on.",
    ),
    gauge(
        "rankwatch_node_first_start_timestamp_seconds",
        "seconds",
        _RUN,
        "Unix time at which the first of the run's living ranks on this node started.",
    ),
    gauge(
        "rankwatch_node_last_start_timestamp_seconds",
        "seconds",
        _RUN,
        "Unix time at which the last of the run's living ranks on this node started.",
    ),
    gauge(
        "rankwatch_node_progress_timestamp_seconds",
        "seconds",
        _RUN,
        "Unix time at which any living rank of the run on this node last made progress or started.",
    ),
    gauge(
        "rankwatch_node_progress_timeout_seconds",
        "seconds",
        _RUN,
        "Longest time without progress that is normal for the run's living ranks on this node; no series "
        "until it is known of each of them.",
    ),
    gauge(
        "rankwatch_node_checkpoint_saved_step",
        "1",
        _RUN,
        "Step of the checkpoint that all saving ranks of the run on this node have saved; -1 while one of "
        "them saves for the first time.",
    ),
    gauge(
        "rankwatch_node_checkpoint_saved_timestamp_seconds",
        "seconds",
        _RUN,
        "Unix time of the oldest of their last saves; -1 while one of them saves for the first time.",
    ),
    gauge(
        "rankwatch_node_checkpoint_committed_step",
        "1",
        _RUN,
        "Step of the last checkpoint whose common metadata a rank of this node has written.",
    ),
    gauge(
        "rankwatch_node_checkpoint_committed_timestamp_seconds",
        "seconds",
        _RUN,
        "Unix time at which it had been written.",
    ),
    gauge(
        "rankwatch_half_loss_trend",
        "1",
        (Label.RUN, Label.HALF),
        "Median of `rankwatch_loss_trend`, where it is positive, of one half of the run's ranks on this "
        "node. Only in runs of more ranks than `max_single_ranks`, of which not every rank is exported.",
    ),
    gauge(
        "rankwatch_half_loss_deviation",
        "1",
        (Label.RUN, Label.HALF),
        "The same of `rankwatch_loss_deviation`.",
    ),
)
