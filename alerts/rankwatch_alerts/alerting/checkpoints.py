"""Alerts on work that a run could lose."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import OF_RUN, alert_rule, matching, value_of
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
    """A running run could lose more work than its budget.

    One that has never saved speaks only if it declares an interval, and counts from its start.
    """
    budget = value_of(
        f"run:rankwatch_checkpoint_age_budget_seconds:max{matching(OF_RUN)}",
        OF_RUN,
        "not known",
        "humanizeDuration",
    )
    return alert_rule(
        config,
        Alert.CHECKPOINT_STALE,
        """
            time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max
            > on (cluster, run)
            run:rankwatch_checkpoint_age_budget_seconds:max
            and
            run:rankwatch_ranks_running:sum > 0
        """,
        for_seconds=config.checkpoint_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The last good checkpoint of a running run is older than its budget.",
        description=(
            "Run {{ $labels.run }} would lose {{ $value | humanizeDuration }} of work if it "
            f"stopped now; the budget is {budget}. Check whether it saves at all, and whether its saves fail "
            "or do not verify."
        ),
    )
