"""Alerts on money."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import OF_RUN, alert_rule, matching, opened_on, value_of
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.money import FORECAST
from rankwatch_alerts.rules import CHECKPOINTS_GOODPUT_UID, RUN, Alert, AlertRule, Severity, duration

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


def gpus_idle(config: RuleConfig) -> AlertRule:
    """The mean of a run: with one rank waiting, all others of a synchronous run wait as well.

    GPUs are averaged by node first, so that the join is small. NCCL waits in a kernel, which counts as
    utilisation: a run that hangs in it has the alert on stalls.
    """
    charged = value_of(f"sum(rankwatch_run_allocated_gpus{matching(OF_RUN)})", OF_RUN, "all", 'printf "%.0f"')
    return alert_rule(
        config,
        Alert.GPUS_IDLE,
        f"""
            avg by ({RUN}) (
              (max by ({RUN}, node) (rankwatch_run_allocated_gpus) > bool 0)
              * on (cluster, node) group_left ()
              avg by (cluster, node) (rankwatch_gpu_utilization_ratio)
            )
            < {config.gpu_idle_utilization:g}
        """,
        for_seconds=config.gpu_idle_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="GPUs are charged to a run and do nothing.",
        description=(
            f"Run {{{{ $labels.run }}}} has used its {charged} GPUs by {{{{ $value | humanizePercentage }}}} "
            f"for {duration(config.gpu_idle_for_seconds)}, and pays for all of them. Look which phase its "
            "ranks are in; end it if nobody waits for it."
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
