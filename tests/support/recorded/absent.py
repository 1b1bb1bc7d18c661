"""What the recording does not hold, with the reason: panels that ask for it alone are empty there."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

NOT_RECORDED = {
    "rank:rankwatch_checkpoint_write_skew_seconds:max": "one rank writes each checkpoint",
    "run:rankwatch_checkpoint_write_seconds:median": "one rank writes each checkpoint",
    "rank:rankwatch_replica_differs:step": "replicas agree",
    "rankwatch_checkpoint_damaged_step": "no checkpoint was damaged",
    "rankwatch_attribution_failures_total": "neither a kubelet nor SLURM was there",
    "rankwatch_checkpoint_last_uploaded_timestamp_seconds": "the trainer uploads nothing",
    "rankwatch_dcgm_gpus_unmatched": "no dcgm-exporter ran",
    "run:rankwatch_checkpoint_interval_advice*": "two minutes are too short for a rate of failures",
    "rankwatch_gpu_fan_speed_ratio": "the GPUs have no fans of their own",
    "rankwatch_gpu_mig_*": "no GPU is divided",
    "rankwatch_gpu_readings_rejected_total": "no reading of a GPU was impossible",
    "rankwatch_loss_improvement": "the plateau is off by default",
    "rankwatch_network_pause_seconds_total": "the network card counts no pauses",
    "rankwatch_loss_scale_halvings_total": "no run scales its loss",
    "rankwatch_nccl_*": "the ranks use gloo",
    "rankwatch_nfs_*": "no directory is on NFS",
    "rankwatch_nvidia_service_running": "no services of the driver run on the machine",
    "rankwatch_nvswitch_sxid_errors_total": "no NVSwitch failed",
    "rankwatch_otlp_last_success_timestamp_seconds": "no endpoint was set",
    "rankwatch_rank_gpu_memory_*": "the ranks compute without CUDA",
    "rankwatch_rank_restored_step": "no run resumed from a checkpoint",
    "rankwatch_run_nodes": "no run was started by NVRx",
    "rankwatch_trace_notes_dropped_total": "no endpoint was set",
    "rankwatch_updates_skipped_total": "no run scales its loss",
    "run:rankwatch_cost_per_epoch:mean": "the trainer has no epochs",
    "run:rankwatch_model_flops_utilisation:ratio": "the trainer states no FLOPs, and a CPU has no peak",
    "stage:rankwatch_step_compute_seconds:ratio": "no run has stages of a pipeline",
}
"""By name or pattern of the series."""
NOTHING_FOUND = {
    "rankwatch_run_info": "no run has an experiment tracker",
    "rankwatch_checkpoint_save_pending_since_timestamp_seconds": "the trainer waits for its saves",
    "rankwatch_scalar": "no run scales its loss",
    "rankwatch_checkpoint_background_failures_total": "no save in the background failed",
}
"""By a part of the query, whose series are there, but none of them is what the query asks for."""


def reason(absent: Iterable[str], query: str) -> str:
    """Why a query has no answer, from the names of its series that are not recorded, and from its text. Empty
    where nobody knows."""
    reasons = (why for name in absent for at, why in NOT_RECORDED.items() if fnmatchcase(name, at))
    return next(reasons, "") or next((why for part, why in NOTHING_FOUND.items() if part in query), "")
