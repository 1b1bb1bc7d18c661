"""RankwatchCheckpointStale: a running run could lose more work than its budget."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def checkpoint_stale(config: RuleConfig) -> tuple[AlertRule, ...]:
    """A run that has never saved counts from its start."""
    return (
        AlertRule(
            alert=Alert.CHECKPOINT_STALE,
            expression=promql(f"""
                time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max
                > {config.checkpoint_age_budget_seconds:g}
                and
                run:rankwatch_ranks_running:sum > 0
            """),
            for_seconds=config.checkpoint_for_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.CHECKPOINT_STALE,
                summary="The last good checkpoint of a running run is older than its budget.",
                description=(
                    "Run {{ $labels.run }} would lose {{ $value | humanizeDuration }} of work if it "
                    f"stopped now; the budget is {duration(config.checkpoint_age_budget_seconds)}. Find out "
                    "whether it saves at all, and whether its saves fail or do not verify."
                ),
            ),
        ),
    )
