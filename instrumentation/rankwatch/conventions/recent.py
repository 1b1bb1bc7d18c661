"""Means over the steps of the last minutes (`step_window_seconds`), which the rules compare."""

from __future__ import annotations

from rankwatch.conventions.declaration import gauge
from rankwatch.conventions.labels import Label

TOGETHER = ("work", "microbatches")
"""What may explain that a rank's own time varies: label `reason`."""

_RUN = (Label.RUN,)
_REASON = (Label.RUN, Label.REASON)
OUTSTANDING = "outstanding"
"""Label `shown`: of this large run only ranks that may stand out are exported. Empty for all other runs."""

_RANK = (Label.RUN, Label.RANK, Label.STAGE, Label.SHOWN)
_STAGE = (Label.RUN, Label.STAGE)

_RANKS = (
    gauge(
        "rankwatch_recent_step_local_seconds",
        "seconds",
        (*_RANK, Label.DATA_PARALLEL),
        "Mean seconds per step in which the rank worked and was not blocked in collectives, over the last "
        "`step_window_seconds`. No series while it completes no step.",
    ),
    gauge(
        "rankwatch_recent_step_arrival_seconds",
        "seconds",
        _RANK,
        "The same with sends and receives: when the rank reaches the collectives.",
    ),
    gauge(
        "rankwatch_recent_step_compute_seconds",
        "seconds",
        _RANK,
        "Mean local seconds per step, without waiting for data, checkpoints and evaluation.",
    ),
    gauge(
        "rankwatch_recent_step_phase_seconds",
        "seconds",
        (*_RANK, Label.PHASE),
        "Mean local seconds per step by phase (compute, data_loading, checkpoint, other).",
    ),
    gauge(
        "rankwatch_recent_step_tokens",
        "1",
        _RANK,
        "Mean tokens per step of the rank, where it reports them.",
    ),
    gauge(
        "rankwatch_recent_token_local_seconds",
        "seconds",
        _RANK,
        "Mean local seconds per token of the rank, where it reports tokens.",
    ),
    gauge(
        "rankwatch_recent_data_wait_ratio", "1", _RANK, "Share of its steps that the rank waited for data."
    ),
    gauge("rankwatch_recent_late_steps_ratio", "1", _RANK, "Share of the steps of the rank that were late."),
    gauge(
        "rankwatch_recent_late_step_seconds",
        "seconds",
        _RANK,
        "Mean seconds per step by which late steps exceeded the rank's median.",
    ),
    gauge(
        "rankwatch_recent_late_step_long_seconds",
        "seconds",
        _RANK,
        "The same over twice the window: few long steps hold few late ones.",
    ),
)

_NODES = (
    gauge(
        "rankwatch_recent_run_step_seconds",
        "seconds",
        _RUN,
        "Mean seconds per step of the median rank of the run on this node.",
    ),
    gauge(
        "rankwatch_recent_run_waiting_ratio",
        "1",
        _RUN,
        "Share of the step in which the median rank of the run on this node is blocked in collectives.",
    ),
    gauge(
        "rankwatch_recent_run_step_variance_ratio",
        "1",
        _RUN,
        "Mean squared relative deviation of local time from its median, of the median rank on this node.",
    ),
    gauge(
        "rankwatch_recent_run_covariance_ratio",
        "1",
        _REASON,
        "Covariance of local time with tokens (work), or of forward with backward of the same microbatch "
        "(microbatches), relative to their medians; of the median rank on this node.",
    ),
    gauge(
        "rankwatch_recent_run_correlation_ratio",
        "1",
        _REASON,
        "The same as a correlation, from -1 to 1.",
    ),
    gauge(
        "rankwatch_recent_run_sigma_ratio",
        "1",
        _REASON,
        "Standard deviation of the step's own time that tokens or microbatches explain, as a share of it; of "
        "the median rank on this node.",
    ),
    gauge(
        "rankwatch_recent_stage_phase_seconds",
        "seconds",
        (Label.RUN, Label.STAGE, Label.PHASE),
        "Mean local seconds per step by phase, of the median rank of the stage on this node.",
    ),
)

_OF_HALF = (Label.RUN, Label.STAGE, Label.HALF)

_HALVES = (
    gauge(
        "rankwatch_recent_half_step_local_seconds",
        "seconds",
        _OF_HALF,
        "Median of `rankwatch_recent_step_local_seconds` of one half of the ranks of the stage on this node. "
        "Only in runs of more ranks than `max_single_ranks`, of which not every rank is exported.",
    ),
    gauge(
        "rankwatch_recent_half_step_arrival_seconds",
        "seconds",
        _OF_HALF,
        "The same of `rankwatch_recent_step_arrival_seconds`.",
    ),
    gauge("rankwatch_recent_half_step_tokens", "1", _OF_HALF, "The same of `rankwatch_recent_step_tokens`."),
    gauge(
        "rankwatch_recent_half_token_local_seconds",
        "seconds",
        _OF_HALF,
        "The same of `rankwatch_recent_token_local_seconds`.",
    ),
)

_STAGES = (
    gauge(
        "rankwatch_recent_stage_ranks",
        "1",
        _STAGE,
        "Ranks of the stage on this node that complete steps.",
    ),
    gauge(
        "rankwatch_recent_stage_compute_seconds",
        "seconds",
        _STAGE,
        "Mean local seconds per step, without waiting for data, checkpoints and evaluation, of the median "
        "rank of the stage on this node. Rules read a series for each node then, not for each rank.",
    ),
    gauge(
        "rankwatch_recent_stage_least_compute_seconds",
        "seconds",
        _STAGE,
        "That of the rank of the stage on this node that computes shortest.",
    ),
    gauge(
        "rankwatch_recent_stage_data_wait_ratio",
        "1",
        _STAGE,
        "Share of its steps that the median rank of the stage on this node waited for data.",
    ),
    gauge(
        "rankwatch_recent_stage_token_ranks",
        "1",
        _STAGE,
        "Ranks of the stage on this node that complete steps and report tokens.",
    ),
    gauge(
        "rankwatch_recent_stage_most_tokens",
        "1",
        _STAGE,
        "Mean tokens per step of the one of these ranks that has most.",
    ),
    gauge(
        "rankwatch_recent_stage_most_tokens_local_seconds",
        "seconds",
        _STAGE,
        "Mean local seconds per step of the same rank.",
    ),
)

_LATE = (
    gauge(
        "rankwatch_recent_run_late_step_seconds",
        "seconds",
        _RUN,
        "Sum over the ranks of the run on this node of `rankwatch_recent_late_step_seconds`.",
    ),
    gauge(
        "rankwatch_recent_run_late_step_long_seconds",
        "seconds",
        _RUN,
        "The same over twice the window.",
    ),
    gauge(
        "rankwatch_recent_run_late_ranks",
        "1",
        _RUN,
        "Ranks of the run on this node that had a late step within twice the window.",
    ),
    gauge(
        "rankwatch_recent_run_most_late_step_seconds",
        "seconds",
        _RUN,
        "Mean seconds per step of late steps of the rank that is most late on this node, over twice the "
        "window.",
    ),
    gauge(
        "rankwatch_recent_run_most_late_step_long_seconds",
        "seconds",
        _RUN,
        "The same over twice the window.",
    ),
    gauge(
        "rankwatch_recent_run_second_late_step_long_seconds",
        "seconds",
        _RUN,
        "The same of the rank that comes second; 0 where there is none.",
    ),
)

RECENT = (*_RANKS, *_NODES, *_HALVES, *_STAGES, *_LATE)
