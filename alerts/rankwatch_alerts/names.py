"""The alerts by name, and the reasons by which the rules of one alert differ."""

from __future__ import annotations

from enum import StrEnum


class Alert(StrEnum):
    """Name of an alert; its runbook is runbooks/<name>.md."""

    STRAGGLER = "RankwatchStraggler"
    RUN_STALLED = "RankwatchRunStalled"
    RANK_LOST = "RankwatchRankLost"
    LOSS_NON_FINITE = "RankwatchLossNonFinite"
    LOSS_DIVERGING = "RankwatchLossDiverging"
    CHECKPOINT_FAILED = "RankwatchCheckpointFailed"
    CHECKPOINT_STALE = "RankwatchCheckpointStale"
    TELEMETRY_ABSENT = "RankwatchTelemetryAbsent"
    COLLECTOR_FAILING = "RankwatchCollectorFailing"


ALERT_NAMES: tuple[str, ...] = tuple(str(each) for each in Alert)

RUN_DEBUG_UID = "rankwatch-run-debug"
"""Uid of the dashboard every alert of a run links to."""
