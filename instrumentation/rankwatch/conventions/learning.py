"""Metrics of scalars and checkpoints: is the run learning, and could work be lost."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)

SCALARS = (
    gauge("rankwatch_scalar", "1", (*_RANK, Label.NAME), "Last value of a scalar the training loop reports."),
    counter(
        "rankwatch_scalar_nonfinite_total",
        "1",
        (*_RANK, Label.NAME),
        "Values of the scalar that were NaN or infinite, counted on every step.",
    ),
    counter("rankwatch_loss_spikes_total", "1", _RANK, "Steps whose loss stood far above its trend."),
    gauge(
        "rankwatch_loss_trend",
        "1",
        _RANK,
        "Trend of the loss: slow exponential average that leaves spikes out.",
    ),
    gauge(
        "rankwatch_loss_deviation",
        "1",
        _RANK,
        "How far the smoothed loss stands above its trend, in robust standard deviations of its own noise.",
    ),
)

CHECKPOINTS = (
    counter(
        "rankwatch_checkpoint_operations_total",
        "1",
        (*_RANK, Label.OPERATION, Label.OUTCOME),
        "Checkpoint operations (save, verify, load) by outcome (success, failure).",
    ),
    counter(
        "rankwatch_checkpoint_operation_seconds_total",
        "seconds",
        (*_RANK, Label.OPERATION),
        "Time spent in checkpoint operations.",
    ),
    counter(
        "rankwatch_checkpoint_stage_seconds_total",
        "seconds",
        (*_RANK, Label.OPERATION, Label.CHECKPOINT_STAGE),
        "Time spent in stages of checkpoint operations (serialize, write, fsync, ...).",
    ),
    gauge("rankwatch_checkpoint_bytes", "bytes", _RANK, "Size of the last checkpoint saved by the rank."),
    gauge(
        "rankwatch_checkpoint_last_good_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time of the last good checkpoint: verified where the run verifies, else saved.",
    ),
    gauge("rankwatch_checkpoint_last_good_step", "1", _RANK, "Step of the last good checkpoint."),
)
