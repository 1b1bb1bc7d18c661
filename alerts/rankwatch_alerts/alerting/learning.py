"""Alerts on the loss, the norms and the loss scale of a run."""

from __future__ import annotations

from rankwatch.conventions.vocabulary import GRADIENT_NORM, UPDATE_NORM
from rankwatch_alerts.alerting.alert import OF_RUN, alert_rule, lasting, listed, looked_up, value_of
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.learning import COLLAPSED, DATA_SKEW, DIVERGING, FIRST_NON_FINITE
from rankwatch_alerts.rules import Alert, AlertRule, Severity, duration, lately


def loss_non_finite(config: RuleConfig) -> AlertRule:
    """The loss was NaN or infinite: tested on each rank, because max() hides NaN and quantile() spreads it.

    One alert per run, because after the next gradient exchange all ranks have it. The agents know the step at
    which each rank had it first, until another process takes the rank.
    """
    window = duration(config.event_window_seconds)
    of_run = 'name="loss", cluster=%q, run=%q'
    last = 'rankwatch_scalar_last_nonfinite_timestamp_seconds{name="loss"}'
    often = listed(
        "topk(3, sum by (rank, node) "
        f"(increase(rankwatch_scalar_nonfinite_total{{{of_run}}}[{window}])) > 0)",
        OF_RUN,
        "{{ $series.Labels.rank }} on node {{ $series.Labels.node }}",
        "none any more",
    )
    first = looked_up(
        f"count by (name) ({FIRST_NON_FINITE}{{{of_run}}})",
        OF_RUN,
        "first on {{ . | first | value }} rank(s) at once, among them "
        + listed(
            f"topk(3, {FIRST_NON_FINITE}{{{of_run}}})",
            OF_RUN,
            "rank {{ $series.Labels.rank }} on node {{ $series.Labels.node }} at step {{ $series.Value }}",
            "none any more",
            by="rank",
        ),
        f"most often on rank {often}",
    )
    return alert_rule(
        config,
        Alert.LOSS_NON_FINITE,
        f"""
            count by (cluster, run) (
              max by (cluster, run, rank) {lately(last, config.event_window_seconds)}
            )
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="The loss of a run was NaN or infinite.",
        description=(
            "The loss of run {{ $labels.run }} was NaN or infinite on {{ $value }} rank(s) in the "
            f"last {window}; {first}. Unless the trainer "
            "skips such steps, [[stop it and resume from before that step]]."
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
            "deviations above its own trend on the median rank. [[Compare learning rate and gradient "
            "norm]] with the time before; if it does not recover, stop the run and resume from a "
            "checkpoint before the break with a lower learning rate or without that data."
        ),
    )


def loss_plateau(config: RuleConfig) -> AlertRule:
    """The loss no longer improves. Only runs on nodes whose agent looks for a plateau have the series."""
    return alert_rule(
        config,
        Alert.LOSS_PLATEAU,
        f"""
            quantile by (cluster, run) (
              0.5,
              max by (cluster, run, rank) (rankwatch_loss_improvement > -Inf)
            ) < {config.loss_improvement:g}
            and
            run:rankwatch_ranks_running:sum > 0
        """,
        for_seconds=config.loss_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The loss of a run no longer improves.",
        description=(
            "The loss of run {{ $labels.run }} has become lower by at most "
            '{{ $value | printf "%.4f" }} of itself within the steps over which it should improve, on the '
            "median rank. [[Compare learning rate, gradient norm and evaluations]]; end the run, or lower "
            "the learning rate, if it has learnt what it can."
        ),
    )


def norm_exploding(config: RuleConfig) -> AlertRule:
    """A gradient or update norm has jumped and stayed up for steps. The loss often breaks after it."""
    last = f'rankwatch_norm_last_explosion_timestamp_seconds{{name=~"{GRADIENT_NORM}|{UPDATE_NORM}"}}'
    window = duration(config.event_window_seconds)
    highest = value_of(
        f"max(max_over_time(rankwatch_norm_ratio{{name=%q, cluster=%q, run=%q}}[{window}]))",
        ("name", *OF_RUN),
        "many",
        'printf "%.1f"',
    )
    return alert_rule(
        config,
        Alert.NORM_EXPLODING,
        f"""
            group by (cluster, run, name) {lately(last, config.event_window_seconds)}
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The gradient norm or update norm of a run has exploded.",
        description=(
            f"The {{{{ $labels.name }}}} of run {{{{ $labels.run }}}} stood up to {highest} times above its "
            f"own trend for steps in the last {window}. The loss may follow: watch it, and [[keep the last "
            "checkpoint before the jump]]."
        ),
    )


def loss_scale_collapsed(config: RuleConfig) -> AlertRule:
    """The gradient scaler finds overflow whatever the scale: nothing is learnt, and the loss looks flat."""
    return alert_rule(
        config,
        Alert.LOSS_SCALE_COLLAPSED,
        lasting(
            config,
            Alert.LOSS_SCALE_COLLAPSED,
            Severity.CRITICAL,
            condition=COLLAPSED,
            record=COLLAPSED,
            by=OF_RUN,
            seconds=config.loss_for_seconds,
        ),
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="The loss scale of a run has collapsed.",
        description=(
            "The gradient scaler of run {{ $labels.run }} halves its scale again and again, or skips updates "
            "at the smallest one, on {{ $value }} rank(s). Gradients are not finite whatever the scale, so "
            "the run learns nothing: [[stop it and resume from the last good checkpoint]], in bfloat16 "
            "if you can."
        ),
    )


def data_skew(config: RuleConfig) -> AlertRule:
    """The loss of one rank has stood elsewhere than that of its peers for long: its data differ."""
    return alert_rule(
        config,
        Alert.DATA_SKEW,
        lasting(
            config,
            Alert.DATA_SKEW,
            Severity.WARNING,
            condition=DATA_SKEW,
            record=DATA_SKEW,
            by=("cluster", "run", "rank", "node"),
            seconds=config.data_skew_for_seconds,
        ),
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The data of a rank differ from those of its peers.",
        description=(
            "The loss of rank {{ $labels.rank }} of run {{ $labels.run }}, on node {{ $labels.node }}, "
            'has stood at {{ $value | printf "%.2f" }} times that of the median rank for '
            f"{duration(config.data_skew_for_seconds)}, also per token. [[Compare the shard, the seed and "
            "the filters]] of its data loader with those of another rank."
        ),
    )
