"""RankwatchLossNonFinite: the loss of a run was NaN or infinite."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def loss_non_finite(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Tested on each rank before ranks are put together: max() hides NaN, quantile() spreads it.

    One alert per run, because after the next gradient exchange all ranks have it. The rank with the
    most non-finite steps is the one that had them first.
    """
    window = duration(config.event_window_seconds)
    first = listed(
        "topk(3, sum by (rank, node) (increase(rankwatch_scalar_nonfinite_total"
        f'{{name="loss", cluster=%q, run=%q}}[{window}])) > 0)',
        ("cluster", "run"),
        "{{ $series.Labels.rank }} on node {{ $series.Labels.node }}",
        "none any more",
    )
    return (
        AlertRule(
            alert=Alert.LOSS_NON_FINITE,
            expression=promql(f"""
                count by (cluster, run) (
                  sum by (cluster, run, rank) (
                    increase(rankwatch_scalar_nonfinite_total{{name="loss"}}[{window}])
                  ) > 0
                )
            """),
            for_seconds=config.confirm_seconds,
            severity=Severity.CRITICAL,
            annotations=alert_annotations(
                config,
                Alert.LOSS_NON_FINITE,
                summary="The loss of a run was NaN or infinite.",
                description=(
                    "The loss of run {{ $labels.run }} was NaN or infinite on {{ $value }} rank(s) in the "
                    f"last {window}; most often, and so probably first, on rank {first}. Unless the trainer "
                    "skips such steps, stop the run and resume from the last good checkpoint."
                ),
            ),
        ),
    )
