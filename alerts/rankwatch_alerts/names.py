"""The alerts by name, and the reasons by which the rules of one alert differ."""

from __future__ import annotations

from enum import StrEnum


class Alert(StrEnum):
    """Name of an alert; its runbook is runbooks/<name>.md."""

    STRAGGLER = "RankwatchStraggler"
    SLOW_STAGE = "RankwatchSlowStage"
    UNEQUAL_BATCHES = "RankwatchUnequalBatches"
    SLOW_DATA_LOADING = "RankwatchSlowDataLoading"
    NETWORK_DEGRADED = "RankwatchNetworkDegraded"
    JITTER = "RankwatchJitter"
    RUN_STALLED = "RankwatchRunStalled"
    COLLECTIVES_DESYNCHRONISED = "RankwatchCollectivesDesynchronised"
    RANK_LOST = "RankwatchRankLost"
    LOSS_NON_FINITE = "RankwatchLossNonFinite"
    LOSS_DIVERGING = "RankwatchLossDiverging"
    CHECKPOINT_FAILED = "RankwatchCheckpointFailed"
    CHECKPOINT_STALE = "RankwatchCheckpointStale"
    TELEMETRY_ABSENT = "RankwatchTelemetryAbsent"
    COLLECTOR_FAILING = "RankwatchCollectorFailing"


RANK_KNOWN, RANK_UNKNOWN = "rank_known", "rank_unknown"
"""Reasons of a stall: with the ranks the run waits for, and without."""

ALERT_NAMES: tuple[str, ...] = tuple(str(each) for each in Alert)

RUN_DEBUG_UID = "rankwatch-run-debug"
"""Uid of the dashboard every alert of a run links to."""
