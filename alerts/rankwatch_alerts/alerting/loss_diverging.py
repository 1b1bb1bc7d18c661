"""RankwatchLossDiverging: the loss has left its own trend and does not return."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def loss_diverging(config: RuleConfig) -> tuple[AlertRule, ...]:
    """The median rank decides, so that one odd shard of data does not.

    `> -Inf` leaves out NaN, which one quantile would spread over all ranks.
    """
    return (
        AlertRule(
            alert=Alert.LOSS_DIVERGING,
            expression=promql(f"""
                quantile by (cluster, run) (
                  0.5,
                  max by (cluster, run, rank) (rankwatch_loss_deviation > -Inf)
                ) > {config.loss_deviation:g}
                and
                run:rankwatch_ranks_running:sum > 0
            """),
            for_seconds=config.loss_for_seconds,
            severity=Severity.CRITICAL,
            annotations=alert_annotations(
                config,
                Alert.LOSS_DIVERGING,
                summary="The loss of a run stands above its trend and does not return.",
                description=(
                    'The loss of run {{ $labels.run }} stands {{ $value | printf "%.1f" }} robust standard '
                    "deviations above its own trend on the median rank. Compare learning rate and gradient "
                    "norm with the time before; if it does not recover, stop the run and resume from a "
                    "checkpoint before the break with a lower learning rate or without that data."
                ),
            ),
        ),
    )
