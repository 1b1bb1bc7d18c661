"""The alert on replicas that are not equal."""

from __future__ import annotations

from rankwatch.conventions.vocabulary import GRADIENT_NORM
from rankwatch_alerts.alerting.alert import alert_rule
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.replicas import NORM_DIFFERS, RANK_DIFFERS, REPLICAS_DIFFER
from rankwatch_alerts.rules import RANK_KNOWN, RANK_UNKNOWN, Alert, AlertRule, Severity

_WHAT_TO_DO = "Stop the run and restore the newest checkpoint from before that step."
_LEAVE_OUT = "[[Leave out the GPU of that rank]] until it is tested."


def rank_differs(config: RuleConfig) -> AlertRule:
    """The parameters of a rank differ from those of the majority."""
    return _rule(
        config,
        RANK_DIFFERS,
        RANK_KNOWN,
        "Rank {{ $labels.rank }} of run {{ $labels.run }} on node {{ $labels.node }} holds other parameters "
        "than the majority of ranks {{ $labels.members }}, at step {{ $value }} or before. "
        f"{_WHAT_TO_DO} {_LEAVE_OUT}",
    )


def norm_differs(config: RuleConfig) -> AlertRule:
    """A rank has another gradient norm than the majority, though all have the same gradients."""
    return _rule(
        config,
        NORM_DIFFERS,
        RANK_KNOWN,
        "Rank {{ $labels.rank }} of run {{ $labels.run }} on node {{ $labels.node }} has another gradient "
        "norm than the majority of ranks {{ $labels.members }}, at step {{ $value }}, although the "
        "all-reduce gives the same gradients to all. It applies another update: see whether its parameters "
        f"differ, too. {_LEAVE_OUT}",
        name=GRADIENT_NORM,
    )


def replicas_differ(config: RuleConfig) -> AlertRule:
    """Replicas differ, and there is no majority: with two of them there never is one."""
    return _rule(
        config,
        REPLICAS_DIFFER,
        RANK_UNKNOWN,
        "Ranks {{ $labels.members }} of run {{ $labels.run }} do not hold the same parameters, at step "
        "{{ $value }} or before, and no majority tells which one is wrong. "
        f"{_WHAT_TO_DO} [[Test their GPUs]].",
    )


def _rule(config: RuleConfig, expression: str, reason: str, description: str, **labels: str) -> AlertRule:
    """A difference does not go away by itself, so it is enough to see it twice."""
    return alert_rule(
        config,
        Alert.REPLICAS_DISAGREE,
        expression,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        labels={"reason": reason, **labels},
        summary="Replicas of a model do not hold the same parameters, or do not compute the same.",
        description=description,
    )
