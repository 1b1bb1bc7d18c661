"""Alerts on the memory and the disks of a node."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import alert_rule, listed, opened_on, value_of
from rankwatch_alerts.alerting.hardware import NODE, Fault, hardware_alerts
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.hardware import RUN_OF_NODE
from rankwatch_alerts.rules import HARDWARE_UID, Alert, AlertRule, Severity, duration

_PATH = "cluster, node, path"


def host_alerts(config: RuleConfig) -> tuple[AlertRule, ...]:
    """All alerts on hosts."""
    return (*hardware_alerts(config, _oom_kill(config)), *_disk_filling(config))


def _oom_kill(config: RuleConfig) -> Fault:
    """A ticket: a rank that was killed pages as RankwatchRankLost, and this says why."""
    window = duration(config.event_window_seconds)
    return Fault(
        alert=Alert.OOM_KILL,
        part=NODE,
        summary="The kernel killed processes because memory ran out.",
        happened='The kernel of node {{ $labels.node }} killed {{ $value | printf "%.0f" }} process(es) in '
        f"the last {window} because memory ran out.",
        ticket=f"""
            max by (cluster, node) (increase(rankwatch_host_oom_kills_total[{window}])) > 0
        """,
        if_idle="If a rank or a data loader was killed, the run ends or hangs: look in the kernel log which "
        "process it was, and give it more memory or fewer loader workers.",
        for_seconds=config.confirm_seconds,
    )


def _disk_filling(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One alert per path, and per run where it pages: a shared file system fills on all nodes at once."""
    free = (
        f"max by ({_PATH}) (rankwatch_filesystem_available_bytes)"
        f" / max by ({_PATH}) (rankwatch_filesystem_size_bytes)"
    )
    full_soon = _full_within(config, config.disk_page_seconds)
    full_later = _full_within(config, config.disk_ticket_seconds)
    page = f"""
        count by (cluster, run, path) (
          ({free} < {config.disk_free_share:g} and on ({_PATH}) {full_soon})
          * on (cluster, node) group_left (run)
          ({RUN_OF_NODE} > bool 0)
        )
    """
    ticket = f"""
        count by (cluster, path) (
          {free} < {config.disk_free_share:g}
          or
          {free} < 0.5 and on ({_PATH}) {full_later}
        )
    """
    return (
        _disk(
            config,
            page,
            Severity.CRITICAL,
            f"fills up: at its present pace it is full within {duration(config.disk_page_seconds)}. The next "
            "checkpoint of run {{ $labels.run }} may fail. Make room now: delete old checkpoints, and keep "
            "the last good one.",
        ),
        _disk(
            config,
            ticket,
            Severity.WARNING,
            f"has less than {config.disk_free_share:.0%} of its space left, or is full within "
            f"{duration(config.disk_ticket_seconds)} at its present pace. Delete old checkpoints, or keep "
            "fewer of them.",
        ),
    )


def _full_within(config: RuleConfig, seconds: float) -> str:
    history = duration(config.disk_history_seconds)
    return f"predict_linear(rankwatch_filesystem_available_bytes[{history}], {seconds:g}) < 0"


def _disk(config: RuleConfig, expression: str, severity: Severity, text: str) -> AlertRule:
    nodes = listed(
        "topk(5, max by (node) (rankwatch_filesystem_size_bytes{cluster=%q, path=%q})"
        " unless on (node) (max by (node) (rankwatch_filesystem_available_bytes{cluster=%q, path=%q})"
        " / max by (node) (rankwatch_filesystem_size_bytes{cluster=%q, path=%q}) > 0.5))",
        ("cluster", "path", "cluster", "path", "cluster", "path"),
        "{{ $series.Labels.node }}",
        "not known",
        by="node",
    )
    left = value_of(
        "min(rankwatch_filesystem_available_bytes{cluster=%q, path=%q})",
        ("cluster", "path"),
        "an unknown number of ",
        "humanize1024",
    )
    return alert_rule(
        config,
        Alert.CHECKPOINT_DISK_FILLING,
        expression,
        for_seconds=config.absence_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=severity,
        summary="The file system of checkpoints fills up.",
        description=f"Path {{{{ $labels.path }}}} on {{{{ $value }}}} node(s), among them {nodes}, {text} "
        f"Free: {left}B.",
        dashboard=opened_on(HARDWARE_UID, "cluster"),
    )
