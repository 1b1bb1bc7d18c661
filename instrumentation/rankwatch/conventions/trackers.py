"""What experiment trackers are told of a run: kinds of trackers, names of tags and metrics."""

from __future__ import annotations

from enum import StrEnum


class TrackerKind(StrEnum):
    """An experiment tracker that is found in a training process."""

    MLFLOW = "mlflow"
    WANDB = "wandb"
    TRACKIO = "trackio"
    TENSORBOARD = "tensorboard"


class TrackerTag(StrEnum):
    """Tags of a tracker's run."""

    RUN = "rankwatch.run"
    """Run id of rankwatch."""
    DASHBOARD_URL = "rankwatch.dashboard_url"
    LAST_INCIDENT = "rankwatch.last_incident"
    """Kind, time and the ranks that the evidence names."""
    GOODPUT = "rankwatch.goodput"
    """Part of the time of rank 0 since its start that was spent in completed steps."""


class TrackerMetric(StrEnum):
    """Metrics of a tracker's run, over its steps."""

    GOODPUT = "rankwatch/goodput"
    STEP_SECONDS = "rankwatch/step_seconds"
    """Mean duration of rank 0's steps."""
    STEPS_PER_SECOND = "rankwatch/steps_per_second"
    """Over wall time, with everything between steps."""
    DATA_WAIT_SHARE = "rankwatch/data_wait_share"
    """Part of the time of steps in which rank 0 waited for a batch."""
    COMMUNICATION_SHARE = "rankwatch/communication_share"
    LATE_STEPS = "rankwatch/late_steps"
    """Steps of rank 0 that took far longer than its usual ones."""


DASHBOARD_PATH = "/d/rankwatch-run-debug?var-run={run}"
"""Of the dashboard of one run, below the address of Grafana."""
