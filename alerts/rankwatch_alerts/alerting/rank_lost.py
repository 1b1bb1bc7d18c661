"""RankwatchRankLost: a rank's process is gone and said no goodbye."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def rank_lost(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Silent once the rank runs again, here or on another node."""
    return (
        AlertRule(
            alert=Alert.RANK_LOST,
            expression=promql("""
                max by (cluster, run, rank, node) (rankwatch_rank_state{state="lost"}) == 1
                unless on (cluster, run, rank)
                (rank:rankwatch_rank_running:bool == 1)
            """),
            for_seconds=config.confirm_seconds,
            severity=Severity.CRITICAL,
            annotations=alert_annotations(
                config,
                Alert.RANK_LOST,
                summary="A rank was killed or crashed without saying goodbye.",
                description=(
                    "Rank {{ $labels.rank }} of run {{ $labels.run }} on node {{ $labels.node }} is gone: "
                    "its process ended without reporting an end, as after SIGKILL, the OOM killer or a "
                    "segmentation fault. Read its black box and the kernel log of the node before "
                    "restarting the run."
                ),
            ),
        ),
    )
