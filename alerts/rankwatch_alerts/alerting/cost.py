"""Alerts on money."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import alert_rule, opened_on
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.money import FORECAST
from rankwatch_alerts.rules import CHECKPOINTS_GOODPUT_UID, Alert, AlertRule, Severity

_BOARD = opened_on(CHECKPOINTS_GOODPUT_UID, "cluster", "run")


def forecast_over_budget(config: RuleConfig) -> AlertRule:
    """At its present pace and cost, a run will have spent more than its budget at its last step."""
    return alert_rule(
        config,
        Alert.FORECAST_OVER_BUDGET,
        f"{FORECAST} > 1",
        for_seconds=config.cost_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A run will cost more than its budget.",
        description=(
            "Run {{ $labels.run }} comes to {{ $value | humanizePercentage }} of its budget in "
            "{{ $labels.currency }} ({{ $labels.basis }}) at its last step, if it goes on at its present "
            "pace. Look what its time goes to before you raise the budget."
        ),
        dashboard=_BOARD,
    )


def price_unknown(config: RuleConfig) -> AlertRule:
    """Only where anything has a price: a cluster without a price table wants none."""
    return alert_rule(
        config,
        Alert.PRICE_UNKNOWN,
        """
            min by (cluster, run, gpu_model) (rankwatch_run_price_known) == 0
            and on (cluster)
            group by (cluster) (rankwatch_gpu_price_per_hour)
        """,
        for_seconds=config.cost_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.INFO,
        summary="A run uses something that has no price.",
        description=(
            "The price table has no valid price for {{ $labels.gpu_model }}, which run {{ $labels.run }} "
            "uses. Its cost is not complete. Add a price, or one that follows the price that has ended."
        ),
        dashboard=_BOARD,
    )
