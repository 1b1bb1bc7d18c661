"""Alerts on the loss of a run."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import OF_RUN, alert_rule, lasting, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.learning import DIVERGING
from rankwatch_alerts.rules import Alert, AlertRule, Severity, duration


def loss_non_finite(config: RuleConfig) -> AlertRule:
    """The loss was NaN or infinite: tested on each rank, because max() hides NaN and quantile() spreads it.

    One alert per run, because after the next gradient exchange all ranks have it. The rank with the
    most non-finite steps is the one that had them first.
    """
    window = duration(config.event_window_seconds)
    first = listed(
        "topk(3, sum by (rank, node) (increase(rankwatch_scalar_nonfinite_total"
        f'{{name="loss", cluster=%q, run=%q}}[{window}])) > 0)',
        OF_RUN,
        "{{ $series.Labels.rank }} on node {{ $series.Labels.node }}",
        "none any more",
    )
    return alert_rule(
        config,
        Alert.LOSS_NON_FINITE,
        f"""
            count by (cluster, run) (
              sum by (cluster, run, rank) (
                increase(rankwatch_scalar_nonfinite_total{{name="loss"}}[{window}])
              ) > 0
            )
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="The loss of a run was NaN or infinite.",
        description=(
            "The loss of run {{ $labels.run }} was NaN or infinite on {{ $value }} rank(s) in the "
            f"last {window}; most often, and so probably first, on rank {first}. Unless the trainer "
            "skips such steps, stop the run and resume from the last good checkpoint."
        ),
    )


def loss_diverging(config: RuleConfig) -> AlertRule:
    """The loss has left its own trend and does not return."""
    return alert_rule(
        config,
        Alert.LOSS_DIVERGING,
        lasting(
            config,
            Alert.LOSS_DIVERGING,
            Severity.CRITICAL,
            condition=DIVERGING,
            record=DIVERGING,
            by=OF_RUN,
            seconds=config.loss_for_seconds,
        ),
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="The loss of a run stands above its trend and does not return.",
        description=(
            'The loss of run {{ $labels.run }} stands {{ $value | printf "%.1f" }} robust standard '
            "deviations above its own trend on the median rank. Compare learning rate and gradient "
            "norm with the time before; if it does not recover, stop the run and resume from a "
            "checkpoint before the break with a lower learning rate or without that data."
        ),
    )
