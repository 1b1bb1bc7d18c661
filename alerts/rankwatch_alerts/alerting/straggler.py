"""RankwatchStraggler: one rank's own work holds up the run."""

from __future__ import annotations

from rankwatch.conventions import Cause
from rankwatch_alerts.alerting.annotations import alert_annotations, matchers
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def straggler(config: RuleConfig) -> tuple[AlertRule, ...]:
    """A warning for every straggler, and beside it a critical alert for one that costs much.

    The conditions are in the recorded series, which exists only for suspects. Phase and slowdown
    are annotations: as labels they would change while the alert is pending and start it anew.
    """
    suspects = "max by (cluster, run, rank, node) (rank:rankwatch_straggler:slowdown)"
    return (
        _rule(config, Severity.WARNING, f"{suspects} > 1"),
        _rule(config, Severity.CRITICAL, f"{suspects} > {config.straggler_critical_slowdown:g}"),
    )


def _rule(config: RuleConfig, severity: Severity, expression: str) -> AlertRule:
    of_rank = "{cluster=%q, run=%q, rank=%q, node=%q}"
    labels = matchers("cluster", "run", "rank", "node")
    phase = (
        f"{{{{ with printf `rank_phase:rankwatch_step_local_seconds:excess_share{of_rank}"
        f" > {config.cause_share:g}` {labels} | query }}}}"
        "{{ (. | first).Labels.phase }}{{ else }}inconclusive{{ end }}"
    )
    residual = (
        f"{{{{ with printf `rank:rankwatch_step_local_seconds:residual{of_rank}` {labels} | query }}}}"
        "{{ . | first | value | humanizePercentage }}{{ else }}an unknown share{{ end }}"
    )
    return AlertRule(
        alert=Alert.STRAGGLER,
        expression=promql(expression),
        for_seconds=config.straggler_for_seconds,
        severity=severity,
        annotations=alert_annotations(
            config,
            Alert.STRAGGLER,
            summary="One rank is slower than its peers and holds up the whole run.",
            description=(
                "Rank {{ $labels.rank }} of run {{ $labels.run }} on node {{ $labels.node }} takes "
                f"{residual} longer for its own work than its peers (phase: {phase}). The run takes "
                '{{ $value | printf "%.2f" }} times as long as it would with this rank at their pace. '
                "Check this rank's phases and its node's hardware; if it stays slow, replace the node "
                "at the next checkpoint."
            ),
            cause=Cause.SLOW_RANK,
            phase=phase,
            slowdown='{{ $value | printf "%.2f" }}',
        ),
    )
