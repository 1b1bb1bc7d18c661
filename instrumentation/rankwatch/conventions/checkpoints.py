"""Metrics of checkpoints: how long they take, what is complete, and what a resume lost."""

from __future__ import annotations

from rankwatch.conventions.declaration import Kind, Metric, counter, gauge
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)

CHECKPOINTS = (
    Metric(
        name="rankwatch_checkpoint_duration_seconds",
        kind=Kind.HISTOGRAM,
        unit="seconds",
        labels=(Label.RUN, Label.OPERATION),
        help="Duration of checkpoint operations (save, verify, load, upload) of all ranks of the run on this "
        "node.",
    ),
    counter(
        "rankwatch_checkpoint_operations_total",
        "1",
        (*_RANK, Label.OPERATION, Label.OUTCOME),
        "Checkpoint operations (save, verify, load, upload) by outcome (success, failure, or unfinished, "
        "because the process has ended before).",
    ),
    gauge(
        "rankwatch_checkpoint_last_failure_timestamp_seconds",
        "seconds",
        (*_RANK, Label.OPERATION),
        "Unix time at which an operation last failed; no series before.",
    ),
    gauge(
        "rankwatch_checkpoint_last_failure_info",
        "1",
        (*_RANK, Label.OPERATION, Label.EXCEPTION, Label.MESSAGE, Label.PATH),
        "Exception, message and path of that failure, from the note beside the black box; no series where "
        "the note does not know them.",
    ),
    counter(
        "rankwatch_checkpoint_operation_seconds_total",
        "seconds",
        (*_RANK, Label.OPERATION),
        "Time spent in checkpoint operations.",
    ),
    counter(
        "rankwatch_checkpoint_blocking_seconds_total",
        "seconds",
        (*_RANK, Label.OPERATION),
        "Part of that time for which the training thread was blocked. The rest went by beside training.",
    ),
    counter(
        "rankwatch_checkpoint_stage_seconds_total",
        "seconds",
        (*_RANK, Label.OPERATION, Label.CHECKPOINT_STAGE),
        "Time spent in stages of checkpoint operations (serialize, write, fsync, ...).",
    ),
    counter(
        "rankwatch_checkpoint_operation_bytes_total",
        "bytes",
        (*_RANK, Label.OPERATION),
        "Bytes written or read by checkpoint operations of the rank.",
    ),
    counter(
        "rankwatch_checkpoint_stage_bytes_total",
        "bytes",
        (*_RANK, Label.OPERATION, Label.CHECKPOINT_STAGE),
        "Bytes by which the checkpoint grew in stages of checkpoint operations; no series where it is 0.",
    ),
    counter(
        "rankwatch_checkpoint_stage_failures_total",
        "1",
        (*_RANK, Label.OPERATION, Label.CHECKPOINT_STAGE),
        "Stages of checkpoint operations that failed; `other` is a failure outside of all stages.",
    ),
    counter(
        "rankwatch_checkpoint_saves_overlapped_total",
        "1",
        (Label.RUN,),
        "Saves that began while one before was not finished, or right after training had waited for it, on "
        "the rank of this node that has most of them.",
    ),
    counter(
        "rankwatch_checkpoint_background_failures_total",
        "1",
        _RANK,
        "Saves that failed after training had gone on, so that the training loop learns of it late or never.",
    ),
    gauge("rankwatch_checkpoint_saves_pending", "1", _RANK, "Saves that are under way."),
    gauge(
        "rankwatch_checkpoint_save_pending_since_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time at which the oldest save that is under way began.",
    ),
    gauge(
        "rankwatch_checkpoint_last_write_seconds",
        "seconds",
        _RANK,
        "Time for which the rank wrote files in its last save.",
    ),
    gauge("rankwatch_checkpoint_bytes", "bytes", _RANK, "Size of the last checkpoint saved by the rank."),
    gauge(
        "rankwatch_checkpoint_last_good_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time of the last good checkpoint: verified where the run verifies, else saved.",
    ),
    gauge("rankwatch_checkpoint_last_good_step", "1", _RANK, "Step of the last good checkpoint."),
    gauge(
        "rankwatch_checkpoint_last_saved_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time at which the rank finished its last successful save.",
    ),
    gauge("rankwatch_checkpoint_last_saved_step", "1", _RANK, "Step of the rank's last successful save."),
    gauge(
        "rankwatch_checkpoint_last_committed_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time of the last checkpoint that this rank has completed for all ranks: it writes the common "
        "metadata.",
    ),
    gauge("rankwatch_checkpoint_last_committed_step", "1", _RANK, "Step of that checkpoint."),
    gauge(
        "rankwatch_checkpoint_last_verified_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time of the last checkpoint that the run itself has verified.",
    ),
    gauge("rankwatch_checkpoint_last_verified_step", "1", _RANK, "Step of that checkpoint."),
    gauge(
        "rankwatch_checkpoint_last_uploaded_timestamp_seconds",
        "seconds",
        _RANK,
        "Unix time at which the rank finished its last successful upload of a checkpoint; no series before.",
    ),
    gauge("rankwatch_checkpoint_last_uploaded_step", "1", _RANK, "Step of that checkpoint."),
    gauge(
        "rankwatch_rank_restored_step",
        "1",
        _RANK,
        "Step of the checkpoint from which the present process of the rank resumed; no series if it did not.",
    ),
    counter(
        "rankwatch_rank_steps_lost_total",
        "1",
        _RANK,
        "Steps done after the checkpoint that a resume took, over all resumes of the rank on this node.",
    ),
    gauge(
        "rankwatch_checkpoint_verified_step",
        "1",
        (Label.RUN,),
        "Step of the newest checkpoint that the agent has read and found good; on the node of rank 0.",
    ),
    gauge(
        "rankwatch_checkpoint_verified_timestamp_seconds",
        "seconds",
        (Label.RUN,),
        "Unix time at which that checkpoint was saved.",
    ),
    gauge(
        "rankwatch_checkpoint_verification_timestamp_seconds",
        "seconds",
        (Label.RUN,),
        "Unix time at which the agent last finished a verification of a checkpoint, whatever it found.",
    ),
    gauge(
        "rankwatch_checkpoint_verification_seconds",
        "seconds",
        (Label.RUN,),
        "Duration of that verification.",
    ),
    gauge(
        "rankwatch_checkpoint_damaged_step",
        "1",
        (Label.RUN, Label.PATH, Label.FILE, Label.TENSOR, Label.DAMAGE),
        "Step of a checkpoint that the agent found damaged or incomplete, with the first problem, until it "
        "is deleted or saved again.",
    ),
    counter(
        "rankwatch_checkpoint_verifications_total",
        "1",
        (Label.OUTCOME,),
        "Verifications of checkpoints by the agent, by outcome: good, damaged, incomplete, unverifiable, "
        "gone (deleted meanwhile), failed (could not be read).",
    ),
    counter(
        "rankwatch_checkpoint_verification_bytes_total",
        "bytes",
        (),
        "Size of the checkpoints that the agent has verified.",
    ),
    gauge(
        "rankwatch_checkpoint_verifications_pending",
        "1",
        (),
        "Checkpoints that wait for their verification by the agent, or are being verified.",
    ),
)
