"""RankwatchNetworkDegraded: transfers take longer than they did, and nobody is waited for."""

from __future__ import annotations

from rankwatch.conventions import Cause
from rankwatch_alerts.alerting.annotations import alert_annotations, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def network_degraded(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One alert by group and operation; groups of one mesh dimension share a name.

    It resolves by itself once half of the past that transfers are compared with is as slow.
    """
    of_group = ("cluster", "run", "group", "operation")
    members = listed(
        "topk(3, group:rankwatch_collective_transfer_seconds:growth"
        f"{{cluster=%q, run=%q, group=%q, operation=%q}} > {config.network_growth:g})",
        of_group,
        "{{ $series.Labels.members }} ({{ $series.Labels.size_class }}, "
        '{{ $series.Value | printf "%.1f" }} times)',
        "not known",
    )
    return (
        AlertRule(
            alert=Alert.NETWORK_DEGRADED,
            expression=promql("""
                max by (cluster, run, group, operation) (group:rankwatch_network_degraded:share) > 0
            """),
            for_seconds=config.cause_for_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.NETWORK_DEGRADED,
                summary="Transfers of a process group take longer than they did, while local work does not.",
                description=(
                    "{{ $labels.operation }} in process group {{ $labels.group }} of run {{ $labels.run }} "
                    "takes longer than in the hours before, for which the run loses about "
                    "{{ $value | humanizePercentage }} of its time unless compute hides it. Ranks of the "
                    f"groups that slowed most, by size of the transfer: {members}. Their last arriver waits "
                    "for nobody, so it is the transfer: look at the links and NICs of these ranks."
                ),
                cause=Cause.NETWORK,
                slowdown="about {{ with printf `1 / (1 - max by (cluster, run, group, operation) "
                "(group:rankwatch_network_degraded:share{cluster=%q, run=%q, group=%q, operation=%q}))` "
                f"{'$labels.cluster $labels.run $labels.group $labels.operation'} | query }}}}"
                '{{ . | first | value | printf "%.2f" }}{{ else }}unknown{{ end }}',
            ),
        ),
    )
