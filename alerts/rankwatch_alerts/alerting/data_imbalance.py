"""RankwatchUnequalBatches: batches of unequal work, for which the ranks wait in turn."""

from __future__ import annotations

from rankwatch.conventions import Cause
from rankwatch_alerts.alerting.annotations import alert_annotations, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def data_imbalance(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Names no rank: whoever gets the long batch is late, and replacing nobody helps."""
    seen = listed(
        "run_reason:rankwatch_unequal_batches:share{cluster=%q, run=%q}",
        ("cluster", "run"),
        "{{ $series.Labels.reason }} {{ $series.Value | humanizePercentage }}",
        "not known",
        by="reason",
    )
    return (
        AlertRule(
            alert=Alert.UNEQUAL_BATCHES,
            expression=promql("""
                max by (cluster, run) (run:rankwatch_unequal_batches:share) > 0
            """),
            for_seconds=config.cause_for_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.UNEQUAL_BATCHES,
                summary="The ranks of a run wait for each other because their batches are unequal.",
                description=(
                    "Run {{ $labels.run }} loses about {{ $value | humanizePercentage }} of its time to "
                    f"batches of unequal work. Share of the step by what shows it: {seen} (work: the time of "
                    "a step follows its tokens; microbatches: forward and backward of the same ones are "
                    "long; ranks: some get more tokens than others). No rank is at fault: balance the "
                    "batches."
                ),
                cause=Cause.UNEQUAL_BATCHES,
                slowdown="{{ with printf `1 / (1 - run:rankwatch_unequal_batches:share{cluster=%q, run=%q})` "
                '$labels.cluster $labels.run | query }}{{ . | first | value | printf "%.2f" }}'
                "{{ else }}unknown{{ end }}",
            ),
        ),
    )
