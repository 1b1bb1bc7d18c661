"""RankwatchCollectorFailing: a collector of an agent fails, or has not succeeded for long."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def collector_failing(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Failed is not the same as absent hardware: `not_applicable` is silent, however long."""
    by, success = "cluster, node, collector", "rankwatch_collector_last_success_timestamp_seconds"
    return (
        AlertRule(
            alert=Alert.COLLECTOR_FAILING,
            # Its age when it was scraped: five of the shortest intervals are less than one between scrapes.
            expression=promql(f"""
                max by ({by}) (rankwatch_collector_state{{state="failed"}}) == 1
                or
                (
                  (
                    min by ({by}) (timestamp({success}) - {success})
                    > {config.collector_overdue_intervals:g}
                    * max by ({by}) (rankwatch_collector_interval_seconds)
                  )
                  unless
                  max by ({by}) (rankwatch_collector_state{{state="not_applicable"}})
                )
            """),
            for_seconds=config.collector_for_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.COLLECTOR_FAILING,
                summary="A collector of the agent fails or has not succeeded for long.",
                description=(
                    "Collector {{ $labels.collector }} of the agent on node {{ $labels.node }} fails or "
                    "is overdue; what it measures is unknown there. Read the agent's log for the reason."
                ),
                of_run=False,
            ),
        ),
    )
