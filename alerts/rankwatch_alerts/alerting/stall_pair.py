"""What the alerts on a standing run share: one alert for each rank to blame, or one without a rank."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch_alerts.alerting.annotations import alert_annotations
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import RANK_KNOWN, RANK_UNKNOWN, Alert
from rankwatch_alerts.rules import AlertRule, Severity

OF_RANK = ("cluster", "run", "rank", "node")
RANK_MATCHERS = "{cluster=%q, run=%q, rank=%q, node=%q}"


@dataclass(frozen=True, kw_only=True)
class Told:
    """When an alert is raised, and how it describes that."""

    expression: str
    description: str


def stall_pair(
    config: RuleConfig, alert: Alert, *, summary: str, rank_known: Told, rank_unknown: Told
) -> tuple[AlertRule, ...]:
    """The alert that names a rank, and the one that names none.

    The latter waits twice as long, so that evidence which arrives late does not make two notifications
    of one stall.
    """

    def rule(reason: str, told: Told, for_seconds: float) -> AlertRule:
        return AlertRule(
            alert=alert,
            expression=told.expression,
            for_seconds=for_seconds,
            severity=Severity.CRITICAL,
            labels={"reason": reason},
            annotations=alert_annotations(config, alert, summary=summary, description=told.description),
        )

    return (
        rule(RANK_KNOWN, rank_known, config.stall_for_seconds),
        rule(RANK_UNKNOWN, rank_unknown, 2 * config.stall_for_seconds),
    )
