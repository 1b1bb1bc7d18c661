"""The indicators of whether the work of a run is safe: replicas and checkpoints."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import Good, sli
from rankwatch_alerts.rules import Alert

_OWN_PAST = "what is good differs between runs; the panel shows the run's own past"

REPLICAS = (
    sli(
        "replicas",
        "Do ranks that must hold the same parameters hold the same?",
        "rankwatch_rank_fingerprint",
        "rankwatch_rank_fingerprint_step",
        "rankwatch_rank_fingerprint_gradient_norm",
        "run:rankwatch_replicas_equal:step",
        figure=(
            "max by (cluster, run) (rankwatch_rank_fingerprint_step)"
            " - on (cluster, run)"
            " min by (cluster, run) (run:rankwatch_replicas_equal:step)"
        ),
        unit="steps",
        good=Good.LOWER,
        objective=0.0,
        needs="fingerprints of replicas",
        alerts=(Alert.REPLICAS_DISAGREE,),
    ),
)

CHECKPOINTS = (
    sli(
        "checkpoint outcome",
        "Do saves succeed, and do they verify?",
        "rankwatch_checkpoint_operations_total",
        "rankwatch_checkpoint_last_failure_timestamp_seconds",
        "rankwatch_checkpoint_stage_failures_total",
        "rankwatch_checkpoint_background_failures_total",
        figure=(
            "sum by (cluster, run) "
            '(increase(rankwatch_checkpoint_operations_total{operation="save", outcome="failure"}[$window]))'
        ),
        unit="failures",
        good=Good.LOWER,
        objective=0.0,
        window="event_window_seconds",
        needs="saves that are recorded",
        alerts=(Alert.CHECKPOINT_FAILED,),
    ),
    sli(
        "checkpoint age",
        "How old is the newest complete checkpoint, and the newest verified one?",
        "run:rankwatch_checkpoint_good_timestamp_seconds:max",
        "run:rankwatch_checkpoint_last_good_timestamp_seconds:max",
        "run:rankwatch_checkpoint_complete_timestamp_seconds:max",
        "rankwatch_checkpoint_last_saved_timestamp_seconds",
        "rankwatch_checkpoint_last_verified_timestamp_seconds",
        figure="time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max",
        unit="seconds",
        good=Good.LOWER,
        objective="checkpoint_age_budget_seconds",
        needs="saves that are recorded",
        alerts=(Alert.CHECKPOINT_STALE,),
    ),
    sli(
        "work at risk",
        "How much training would a crash lose now?",
        "run:rankwatch_work_at_risk_seconds:sum",
        "run:rankwatch_gpu_work_at_risk_seconds:sum",
        figure="run:rankwatch_work_at_risk_seconds:sum",
        unit="rank-seconds",
        good=Good.LOWER,
        needs="saves that are recorded",
        no_alert="the age of the last good checkpoint has one, whatever the size of the run",
    ),
    sli(
        "checkpoint time",
        "How long do saves take, in which stage, and how long do they block training?",
        "rankwatch_checkpoint_stage_seconds_total",
        "rankwatch_checkpoint_blocking_seconds_total",
        "rankwatch_checkpoint_operation_seconds_total",
        "rankwatch_node_checkpoint_save_seconds_total",
        "rankwatch_node_checkpoint_save_blocking_seconds_total",
        figure=(
            "max by (cluster, run) "
            '(rate(rankwatch_checkpoint_blocking_seconds_total{operation="save"}[$window]))'
        ),
        unit="share of the time",
        good=Good.LOWER,
        objective="checkpoint_blocking_share",
        window="goodput_window_seconds",
        needs="saves that are recorded",
        alerts=(Alert.CHECKPOINT_SLOW,),
    ),
    sli(
        "checkpoint throughput",
        "How many bytes per second do checkpoints move?",
        "rankwatch_checkpoint_operation_bytes_total",
        "rankwatch_checkpoint_stage_bytes_total",
        figure=(
            "sum by (cluster, run) "
            '(rate(rankwatch_checkpoint_operation_bytes_total{operation="save"}[$window]))'
        ),
        unit="bytes / second",
        good=Good.HIGHER,
        window="goodput_window_seconds",
        needs="saves that are recorded",
        no_alert=_OWN_PAST,
    ),
    sli(
        "slowest writer",
        "Which rank holds up the save of all?",
        "rank:rankwatch_checkpoint_write_skew_seconds:max",
        "run:rankwatch_checkpoint_write_seconds:median",
        figure="max by (cluster, run) (rank:rankwatch_checkpoint_write_skew_seconds:max)",
        unit="seconds behind the median rank",
        good=Good.LOWER,
        objective="checkpoint_write_skew_seconds",
        needs="three ranks that write",
        alerts=(Alert.CHECKPOINT_WRITER_SLOW,),
    ),
    sli(
        "overlapping saves",
        "Is a save finished when the next one begins?",
        "rankwatch_checkpoint_saves_overlapped_total",
        "rankwatch_checkpoint_saves_pending",
        figure="max by (cluster, run) (increase(rankwatch_checkpoint_saves_overlapped_total[$window]))",
        unit="saves",
        good=Good.LOWER,
        objective="checkpoint_overlaps",
        window="checkpoint_overlap_window_seconds",
        needs="asynchronous saves",
        alerts=(Alert.CHECKPOINT_OVERLAP,),
    ),
    sli(
        "resume",
        "From which step did the run resume, and what had to be done again?",
        "rankwatch_rank_restored_step",
        "rankwatch_node_restored_step",
        "rankwatch_rank_steps_lost_total",
        "rankwatch_rank_resumes_total",
        "rankwatch_checkpoint_operations_total",
        "rankwatch_checkpoint_last_failure_timestamp_seconds",
        figure="max by (cluster, run) (increase(rankwatch_rank_steps_lost_total[$window]))",
        unit="steps",
        good=Good.LOWER,
        window="goodput_window_seconds",
        needs="a run that resumed",
        alerts=(Alert.RESUME_FAILED, Alert.RESUMED_FROM_OLDER),
    ),
)
