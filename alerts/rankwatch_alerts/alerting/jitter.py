"""RankwatchJitter: many ranks have single late steps, and the run waits for each."""

from __future__ import annotations

from rankwatch.conventions import Cause
from rankwatch_alerts.alerting.annotations import alert_annotations, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def jitter(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Names no rank: the late ones take turns, and each is soon as fast as its peers again."""
    latest = listed(
        "topk(3, rank:rankwatch_late_step_seconds:mean{cluster=%q, run=%q})",
        ("cluster", "run"),
        "{{ $series.Labels.rank }} (node {{ $series.Labels.node }}, "
        "{{ $series.Value | humanizeDuration }} a step)",
        "not known",
    )
    return (
        AlertRule(
            alert=Alert.JITTER,
            expression=promql("""
                max by (cluster, run) (run:rankwatch_jitter:share) > 0
            """),
            for_seconds=config.cause_for_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.JITTER,
                summary="Many ranks of a run are late in single steps, in turn.",
                description=(
                    "Run {{ $labels.run }} loses about {{ $value | humanizePercentage }} of its time to "
                    "single late steps that are spread over its ranks; none holds more than "
                    f"{config.jitter_rank_share:.0%} of them. The three that hold most: {latest}. No rank is "
                    "at fault: look for what interrupts them all (garbage collection, other processes, "
                    "page faults, power management)."
                ),
                cause=Cause.JITTER,
                slowdown="{{ with printf `1 / (1 - run:rankwatch_jitter:share{cluster=%q, run=%q})` "
                '$labels.cluster $labels.run | query }}{{ . | first | value | printf "%.2f" }}'
                "{{ else }}unknown{{ end }}",
            ),
        ),
    )
