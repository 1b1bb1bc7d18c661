"""Alerts on black boxes that an agent leaves out or cannot read in time: their ranks are not watched."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import alert_rule
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import Alert, AlertRule, Severity, duration, lately

_LAST_FAULT = "rankwatch_blackbox_last_fault_timestamp_seconds"
WINDOW_SECONDS = 1800.0
"""An agent counts each fault once, so the alert goes on this long after the last new one."""


def black_boxes_left_out(config: RuleConfig) -> AlertRule:
    """A new fault, or the faults that an agent found when it started."""
    return alert_rule(
        config,
        Alert.BLACK_BOXES_LEFT_OUT,
        f"""
            group by (cluster, node, reason) {lately(_LAST_FAULT, WINDOW_SECONDS)}
        """,
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The agent leaves out black boxes, so ranks may not be watched.",
        description=(
            "The agent on node {{ $labels.node }} leaves out black boxes or directories of runs: "
            "{{ $labels.reason }}. A run may not be watched, or somebody fills the directory; [[the log of "
            "the agent names the files]]."
        ),
        of_run=False,
    )


def records_missed(config: RuleConfig) -> AlertRule:
    """The agent reads more slowly than ranks write, so what it counts is too low."""
    window = duration(config.absence_window_seconds)
    missed = f"sum by (cluster, run, node) (rate(rankwatch_node_records_missed_total[{window}]))"
    read = f"sum by (cluster, run, node) (rate(rankwatch_node_records_total[{window}]))"
    return alert_rule(
        config,
        Alert.RECORDS_MISSED,
        f"""
            {missed}
            / on (cluster, run, node)
            ({missed} + on (cluster, run, node) {read} > 0)
            > {config.records_missed_share:g}
        """,
        for_seconds=config.collector_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The agent misses records of ranks, so their figures are too low.",
        description=(
            "The agent on node {{ $labels.node }} misses {{ $value | humanizePercentage }} of the records of "
            "run {{ $labels.run }}: they are overwritten before it reads them. Steps, phases and losses of "
            "these ranks are incomplete. [[Give the agent CPU time]], or the ranks larger black boxes."
        ),
    )
