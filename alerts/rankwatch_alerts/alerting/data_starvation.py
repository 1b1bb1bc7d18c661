"""RankwatchSlowDataLoading: most ranks of a run wait for their batches."""

from __future__ import annotations

from rankwatch.conventions import Cause
from rankwatch_alerts.alerting.annotations import alert_annotations, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def data_starvation(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Names no rank: one that waits alone is a straggler with phase `data_loading`."""
    slowest = listed(
        "topk(3, rank:rankwatch_step_data_wait:share{cluster=%q, run=%q})",
        ("cluster", "run"),
        "{{ $series.Labels.rank }} (node {{ $series.Labels.node }}, "
        "{{ $series.Value | humanizePercentage }})",
        "not known",
    )
    return (
        AlertRule(
            alert=Alert.SLOW_DATA_LOADING,
            expression=promql("""
                max by (cluster, run) (run:rankwatch_slow_data_loading:share) > 0
            """),
            for_seconds=config.cause_for_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.SLOW_DATA_LOADING,
                summary="Most ranks of a run wait for data.",
                description=(
                    "The ranks of run {{ $labels.run }} that load data wait for it during "
                    "{{ $value | humanizePercentage }} of their step (median), and most of them do. The run "
                    "loses at most that. The three that wait longest: "
                    f"{slowest}. Look at what they share: storage, its network, the number of loader workers."
                ),
                cause=Cause.DATA_LOADING,
                slowdown="at most {{ with printf `1 / (1 - run:rankwatch_slow_data_loading:share"
                "{cluster=%q, run=%q})` $labels.cluster $labels.run | query }}"
                '{{ . | first | value | printf "%.2f" }}{{ else }}unknown{{ end }}',
            ),
        ),
    )
