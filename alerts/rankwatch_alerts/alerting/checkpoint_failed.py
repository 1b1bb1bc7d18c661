"""RankwatchCheckpointFailed: a checkpoint could not be saved or did not verify."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def checkpoint_failed(config: RuleConfig) -> tuple[AlertRule, ...]:
    """A warning: work is at risk only once the last good checkpoint is old, which has its own alert."""
    failures = 'operation=~"save|verify", outcome="failure"'
    window = duration(config.event_window_seconds)
    return (
        AlertRule(
            alert=Alert.CHECKPOINT_FAILED,
            expression=promql(f"""
                sum by (cluster, run, rank, node, operation) (
                  increase(rankwatch_checkpoint_operations_total{{{failures}}}[{window}])
                ) > 0
            """),
            for_seconds=config.confirm_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.CHECKPOINT_FAILED,
                summary="A checkpoint could not be saved or did not verify.",
                description=(
                    "Checkpoint {{ $labels.operation }} failed on rank {{ $labels.rank }} of run "
                    "{{ $labels.run }} on node {{ $labels.node }} in the last "
                    f"{window}. Check space, mount and errors of the checkpoint path on that node, and that "
                    "an older good checkpoint is kept."
                ),
            ),
        ),
    )
