"""Alerts on work that a run could lose."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import alert_rule
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import Alert, AlertRule, Severity, duration


def checkpoint_failed(config: RuleConfig) -> AlertRule:
    """A warning: work is at risk only once the last good checkpoint is old, which has its own alert."""
    failures = 'operation=~"save|verify", outcome="failure"'
    window = duration(config.event_window_seconds)
    return alert_rule(
        config,
        Alert.CHECKPOINT_FAILED,
        f"""
            sum by (cluster, run, rank, node, operation) (
              increase(rankwatch_checkpoint_operations_total{{{failures}}}[{window}])
            ) > 0
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A checkpoint could not be saved or did not verify.",
        description=(
            "Checkpoint {{ $labels.operation }} failed on rank {{ $labels.rank }} of run "
            "{{ $labels.run }} on node {{ $labels.node }} in the last "
            f"{window}. Check space, mount and errors of the checkpoint path on that node, and that "
            "an older good checkpoint is kept."
        ),
    )


def checkpoint_stale(config: RuleConfig) -> AlertRule:
    """A running run could lose more work than its budget. One that has never saved counts from its start."""
    return alert_rule(
        config,
        Alert.CHECKPOINT_STALE,
        f"""
            time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max
            > {config.checkpoint_age_budget_seconds:g}
            and
            run:rankwatch_ranks_running:sum > 0
        """,
        for_seconds=config.checkpoint_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The last good checkpoint of a running run is older than its budget.",
        description=(
            "Run {{ $labels.run }} would lose {{ $value | humanizeDuration }} of work if it "
            f"stopped now; the budget is {duration(config.checkpoint_age_budget_seconds)}. Check whether it "
            "saves at all, and whether its saves fail or do not verify."
        ),
    )
