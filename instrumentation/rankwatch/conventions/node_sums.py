"""What the rules need of all ranks of a run on a node, added up by the agent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rankwatch.conventions.declaration import counter, gauge
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
        "Living ranks of the run on this node that have the metric of this name, of those that alerts depend "
        "on, or that say why they have none: local time, where steps replay collectives in a CUDA graph.",
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
        "Median of `rankwatch_loss_trend`, where it is positive, of one half of the run's living ranks on "
        "this node. Only in runs of more ranks than `max_single_ranks`, of which not every rank is exported.",
    ),
    gauge(
        "rankwatch_half_loss_deviation",
        "1",
        (Label.RUN, Label.HALF),
        "The same of `rankwatch_loss_deviation`.",
    ),
    gauge(
        "rankwatch_half_checkpoint_last_write_seconds",
        "seconds",
        (Label.RUN, Label.HALF),
        "The same of `rankwatch_checkpoint_last_write_seconds`.",
    ),
    counter(
        "rankwatch_node_steps_total",
        "1",
        _RUN,
        "Steps of that rank of the run on this node that has done most. Rules read a series for each node "
        "then, not for each rank; likewise the next ones.",
    ),
    gauge("rankwatch_node_step", "1", _RUN, "Highest `rankwatch_step` of the run's ranks on this node."),
    counter(
        "rankwatch_node_tokens_total",
        "1",
        (Label.RUN, Label.DATA_PARALLEL),
        "Tokens of a replica, by the rank on this node that has counted most; with an empty coordinate, "
        "those of all ranks that state none.",
    ),
    counter("rankwatch_node_records_total", "1", _RUN, "Records read of all ranks of the run on this node."),
    counter(
        "rankwatch_node_records_missed_total",
        "1",
        _RUN,
        "Records of these ranks that were overwritten before the agent read them.",
    ),
    counter(
        "rankwatch_node_checkpoint_saves_total",
        "1",
        _RUN,
        "Saves that succeeded, of that rank of the run on this node that has most.",
    ),
    counter(
        "rankwatch_node_checkpoint_save_seconds_total",
        "seconds",
        _RUN,
        "Time spent in saves, of that rank of the run on this node that has spent most.",
    ),
    counter(
        "rankwatch_node_checkpoint_save_blocking_seconds_total",
        "seconds",
        _RUN,
        "Time for which saves blocked the training thread, of that rank of the run on this node for which it "
        "was most.",
    ),
    gauge("rankwatch_node_gpus", "1", _RUN, "Living ranks of the run on this node that work on a GPU."),
    gauge(
        "rankwatch_node_target_steps",
        "1",
        _RUN,
        "Most steps that a living rank of the run on this node is to do; no series where none says so.",
    ),
    gauge(
        "rankwatch_node_restored_step",
        "1",
        _RUN,
        "Highest step from which a living rank of the run on this node has resumed.",
    ),
    gauge(
        "rankwatch_node_checkpoint_bytes",
        "bytes",
        _RUN,
        "Size of what the living ranks of the run on this node saved last.",
    ),
)
