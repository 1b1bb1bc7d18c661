"""Metrics of a run: its ranks, steps and how they vary, scalars such as the loss."""

from __future__ import annotations

from rankwatch.conventions.declaration import Kind, Metric, counter, gauge, info
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)

RUNS = (
    info(
        "rankwatch_run_info",
        (Label.RUN, Label.RUN_NAME, Label.RUN_CLASS, Label.OWNER, Label.CONTACT, Label.TRACKER_URL),
        "Name of the run's script or job, its class, the user id that owns its black boxes, the contact it "
        "declares, and the page of its experiment tracker, where rank 0 is on this node and uses one; "
        "always 1.",
    ),
    gauge("rankwatch_run_attempt", "1", (Label.RUN,), "Number of the present attempt of the run, from 0."),
    gauge("rankwatch_run_world_size", "1", (Label.RUN,), "Ranks that the run has on all nodes together."),
    gauge(
        "rankwatch_run_checkpoint_interval_seconds",
        "seconds",
        (Label.RUN,),
        "Longest time between two checkpoints that the run intends; no series where it declares none.",
    ),
    gauge(
        "rankwatch_run_capability_visible",
        "1",
        (Label.RUN, Label.CAPABILITY, Label.REASON),
        "1 if zero-code recording sees this on all ranks of the node, 0 with the reason if a rank does not; "
        "no series while it is not known.",
    ),
)

RANKS = (
    info(
        "rankwatch_rank_info",
        (*_RANK, Label.LOCAL_RANK, Label.WORLD_SIZE, Label.STAGE, Label.DATA_PARALLEL, Label.HOST, Label.PID),
        "Identity of a rank; always 1.",
    ),
    gauge(
        "rankwatch_rank_state",
        "1",
        (*_RANK, Label.STATE),
        "1 for the current state of the rank; other states have no series.",
    ),
    gauge(
        "rankwatch_rank_start_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time at which the rank's process started its run.",
    ),
    gauge(
        "rankwatch_rank_heartbeat_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time of the last record of any kind from the rank.",
    ),
    gauge(
        "rankwatch_rank_end_timestamp_seconds",
        "seconds",
        _RANK,
        "The same of a rank that has ended, in whatever way; no series while it runs.",
    ),
    gauge(
        "rankwatch_rank_phase_start_timestamp_seconds",
        "seconds",
        (*_RANK, Label.PHASE),
        "Unix time at which the innermost open phase of the rank began; no series while none is open.",
    ),
    counter(
        "rankwatch_rank_starts_total",
        "1",
        _RANK,
        "Processes that have taken this rank since the agent first saw the run; restarts are this minus one.",
    ),
    counter("rankwatch_rank_resumes_total", "1", _RANK, "Times the rank resumed from a checkpoint."),
    counter("rankwatch_rank_preemptions_total", "1", _RANK, "Times the rank reported a preemption."),
    counter(
        "rankwatch_rank_failures_total",
        "1",
        (*_RANK, Label.EXCEPTION, Label.KIND),
        "Times the rank was ended by an exception, an exit status or a crash, by the type of the exception "
        "or the signal, and by the kind of failure.",
    ),
)

MEMORY = (
    gauge(
        "rankwatch_rank_resident_memory_bytes",
        "bytes",
        _RANK,
        "Resident memory of the rank's process without its children; no series where that process is hidden.",
    ),
    gauge(
        "rankwatch_rank_gpu_memory_allocated_bytes",
        "bytes",
        _RANK,
        "GPU memory that the rank's tensors hold, by torch's allocator; sampled after a step every 10 s.",
    ),
    gauge(
        "rankwatch_rank_gpu_memory_reserved_bytes",
        "bytes",
        _RANK,
        "GPU memory that torch's allocator holds for the rank, in use by tensors or cached.",
    ),
    gauge(
        "rankwatch_rank_gpu_memory_peak_bytes",
        "bytes",
        _RANK,
        "Most GPU memory that the rank's tensors have held since its process began or reset the peak.",
    ),
    counter(
        "rankwatch_rank_gpu_memory_retries_total",
        "1",
        _RANK,
        "Times torch's allocator gave back all cached GPU memory and tried again: each one stalls the rank.",
    ),
    counter(
        "rankwatch_rank_gpu_memory_failures_total",
        "1",
        _RANK,
        "Times torch's allocator raised an out-of-memory error in the rank.",
    ),
)

STEPS = (
    gauge("rankwatch_step", "1", _RANK, "Number of the last completed training step."),
    gauge("rankwatch_target_steps", "1", _RANK, "Steps that the run wants to reach, where it reports them."),
    counter("rankwatch_steps_total", "1", _RANK, "Training steps completed while the agent watched."),
    counter("rankwatch_step_seconds_total", "seconds", _RANK, "Time spent in completed steps."),
    counter(
        "rankwatch_step_local_seconds_total",
        "seconds",
        _RANK,
        "Time of completed steps not spent blocked in collectives: the rank's own work, which names "
        "a straggler. On a GPU it is the time of the compute stream without waits for other ranks, absent "
        "where these cannot be told apart. Steps of which they cannot are left out, so over "
        "rankwatch_steps_total it may be too low: rankwatch_recent_step_local_seconds is the mean of a step.",
    ),
    counter(
        "rankwatch_step_message_seconds_total",
        "seconds",
        _RANK,
        "Time of completed steps blocked in sends and receives, a part of communication: the rank waits for "
        "its pipeline, and not for the other replicas.",
    ),
    counter(
        "rankwatch_step_phase_seconds_total",
        "seconds",
        (*_RANK, Label.PHASE),
        "Time of completed steps by phase, each moment counted once; communication is the time "
        "blocked in collectives, other what no phase claims. The phases sum to "
        "rankwatch_step_seconds_total.",
    ),
    counter(
        "rankwatch_outside_step_seconds_total",
        "seconds",
        (*_RANK, Label.PHASE),
        "Time in phases outside of steps, such as checkpoints and evaluation between steps.",
    ),
    Metric(
        name="rankwatch_step_duration_seconds",
        kind=Kind.HISTOGRAM,
        unit="seconds",
        labels=(Label.RUN,),
        help="Duration of training steps of all ranks of the run on this node.",
    ),
    counter(
        "rankwatch_work_total",
        "1",
        (*_RANK, Label.UNIT),
        "Work done, inside and outside of the counted steps, in the run's own units (samples, tokens).",
    ),
    gauge(
        "rankwatch_progress_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time at which the rank last completed a step, or a checkpoint or evaluation between steps.",
    ),
    gauge(
        "rankwatch_progress_timeout_seconds",
        "seconds",
        _RANK,
        "Longest time without progress that is normal for what the rank does now, learnt from its "
        "own history; no series until that is known.",
    ),
)

VARIATION = (
    counter(
        "rankwatch_late_steps_total",
        "1",
        _RANK,
        "Steps whose local time, without checkpoint and evaluation, exceeded 1.25 times the rank's median "
        "over the 31 steps before. For a step with more tokens than usual the median is scaled up with "
        "them.",
    ),
    counter(
        "rankwatch_late_step_seconds_total",
        "seconds",
        _RANK,
        "Time by which late steps exceeded the rank's median.",
    ),
    counter(
        "rankwatch_step_microbatches_total",
        "1",
        _RANK,
        "Microbatches of completed steps that have at least two, each with a forward and a backward phase.",
    ),
    counter(
        "rankwatch_step_variation_total",
        "1",
        (*_RANK, Label.TERM),
        "Sum over steps of squared relative deviations. local, work: of the step's local time and tokens "
        "from their medians over the 31 steps before. forward, backward: of microbatches from the mean of "
        "their step (variance). local_and_work, forward_and_backward: of the sum of both, so that the "
        "covariance is (sum - one - other) / 2.",
    ),
)

SCALARS = (
    gauge("rankwatch_scalar", "1", (*_RANK, Label.NAME), "Last value of a scalar the training loop reports."),
    gauge(
        "rankwatch_scalar_value_nonfinite",
        "1",
        (*_RANK, Label.NAME),
        "1 while the last value of the scalar is NaN or infinite; no series while it is finite.",
    ),
    counter(
        "rankwatch_scalar_nonfinite_total",
        "1",
        (*_RANK, Label.NAME),
        "Values of the scalar that were NaN or infinite, counted on every step.",
    ),
    gauge(
        "rankwatch_scalar_last_nonfinite_timestamp_seconds",
        "seconds",
        (*_RANK, Label.NAME),
        "Unix time at which the scalar was last NaN or infinite; no series before.",
    ),
    counter("rankwatch_loss_spikes_total", "1", _RANK, "Steps whose loss stood far above its trend."),
    gauge(
        "rankwatch_loss_trend",
        "1",
        (*_RANK, Label.SHOWN),
        "Trend of the loss: slow exponential average that leaves spikes out.",
    ),
    gauge(
        "rankwatch_loss_deviation",
        "1",
        _RANK,
        "How far the loss stands above its trend, at once or in sum, in standard deviations of its noise.",
    ),
    gauge(
        "rankwatch_loss_improvement",
        "1",
        _RANK,
        "Part of itself by which the loss has become lower within `plateau_steps` steps, at most, given its "
        "noise; only with that setting, and from then on.",
    ),
    gauge(
        "rankwatch_scalar_first_nonfinite_step",
        "1",
        (*_RANK, Label.NAME),
        "Step at which loss, gradient norm or update norm of the present process was first NaN or infinite; "
        "no series before.",
    ),
    counter(
        "rankwatch_norm_explosions_total",
        "1",
        (*_RANK, Label.NAME),
        "Times the smoothed gradient norm or update norm stood far above its trend for five steps.",
    ),
    gauge(
        "rankwatch_norm_last_explosion_timestamp_seconds",
        "seconds",
        (*_RANK, Label.NAME),
        "Unix time at which the last of these was seen; no series before the first.",
    ),
    gauge(
        "rankwatch_norm_ratio",
        "1",
        (*_RANK, Label.NAME),
        "Smoothed gradient norm or update norm, as a multiple of its trend.",
    ),
    counter("rankwatch_loss_scale_halvings_total", "1", _RANK, "Times the loss scale fell."),
    counter(
        "rankwatch_updates_skipped_total",
        "1",
        _RANK,
        "Updates that the gradient scaler skipped, because gradients were not finite.",
    ),
    gauge(
        "rankwatch_loss_scale_collapsed",
        "1",
        _RANK,
        "1 after the loss scale halved four times without holding, fell below 1, or skips updates at 1; "
        "0 once it holds again.",
    ),
    counter(
        "rankwatch_learning_resets_total",
        "1",
        (*_RANK, Label.REASON),
        "Times for which the loss was learnt anew, because it may stand elsewhere: restart, dataset, "
        "learning_rate or batch_size.",
    ),
)
