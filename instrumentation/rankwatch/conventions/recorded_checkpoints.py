"""Recorded series of checkpoints: what is complete, what could be lost, and who writes slowly."""

from __future__ import annotations

from rankwatch.conventions.declaration import RecordedSeries, recorded
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)

RECORDED_CHECKPOINTS: tuple[RecordedSeries, ...] = (
    recorded(
        "run_path:rankwatch_checkpoint_space:saves",
        (*_RUN, Label.PATH),
        "How many more checkpoints of the size of the last one fit into the path, where there is least room.",
    ),
    recorded(
        "run:rankwatch_checkpoint_complete_step:max",
        _RUN,
        "Step of the newest complete checkpoint: every rank that saves has saved it, or it has its common "
        "metadata.",
    ),
    recorded(
        "run:rankwatch_checkpoint_complete_timestamp_seconds:max",
        _RUN,
        "Unix time of the newest complete checkpoint.",
    ),
    recorded(
        "run:rankwatch_checkpoint_good_timestamp_seconds:max",
        _RUN,
        "Unix time of the newest complete checkpoint, unless an agent has found it damaged; then of the "
        "newest one that agents have verified.",
    ),
    recorded(
        "run:rankwatch_checkpoint_last_good_timestamp_seconds:max",
        _RUN,
        "Unix time of the run's last good checkpoint (verified where the run itself verifies, else complete "
        "and not known to be damaged), or of its earliest start where it has none and declares an interval.",
    ),
    recorded(
        "run:rankwatch_checkpoint_age_budget_seconds:max",
        _RUN,
        "Age of the last good checkpoint from which an alert is raised.",
    ),
    recorded(
        "run:rankwatch_work_at_risk_seconds:sum",
        _RUN,
        "Rank-seconds of training since the newest good checkpoint, or since the start of the attempt.",
    ),
    recorded(
        "run:rankwatch_gpu_work_at_risk_seconds:sum",
        _RUN,
        "GPU-seconds of training since the newest good checkpoint, or since the start of the attempt.",
    ),
    recorded(
        "run:rankwatch_checkpoint_write_seconds:median",
        _RUN,
        "Time for which the median rank wrote files in its last save, where several ranks do.",
    ),
    recorded(
        "rank:rankwatch_checkpoint_write_skew_seconds:max",
        (*_RUN, Label.RANK, Label.NODE),
        "Time by which the slowest rank of the run wrote longer than the median rank, in their last saves.",
    ),
)
