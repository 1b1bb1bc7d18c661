"""Alerts on the memory, the clock, the TCP traffic and the disks of a node."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import NO_RUN, alert_rule, listed, opened_on, value_of
from rankwatch_alerts.alerting.hardware import NETWORK, NODE, Fault, hardware_alerts
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.hardware import CLOCK_AHEAD, MOUNT_AVAILABLE, RUN_OF_NODE
from rankwatch_alerts.rules import HARDWARE_UID, Alert, AlertRule, Severity, duration

_PATH = "cluster, node, path"
_AVAILABLE = "rankwatch_filesystem_available_bytes"


def host_alerts(config: RuleConfig) -> tuple[AlertRule, ...]:
    """All alerts on hosts."""
    faults = (_tcp_retransmits(config), _clock_wrong(config), _clock_differs(config), _oom_kill(config))
    return (*(rule for each in faults for rule in hardware_alerts(config, each)), *_disk_filling(config))


def _tcp_retransmits(config: RuleConfig) -> Fault:
    """A ticket: loss makes sockets slow, and a run that gets slow has an alert of its own.

    All traffic of the node's network namespace: also storage and data, and gloo or NCCL over sockets.
    """
    window = duration(config.event_window_seconds)
    sent = f"sum by (cluster, node) (increase(rankwatch_tcp_sent_segments_total[{window}]))"
    return Fault(
        alert=Alert.TCP_RETRANSMITS,
        part=NETWORK,
        summary="A node has to send many TCP segments again.",
        happened="Node {{ $labels.node }} sent {{ $value | humanizePercentage }} of its TCP segments again "
        f"in the last {window}.",
        ticket=f"""
            sum by (cluster, node) (increase(rankwatch_tcp_retransmitted_segments_total[{window}]))
            / on (cluster, node)
            ({sent} > {config.tcp_least_segments:g})
            > {config.tcp_retransmit_share:g}
        """,
        if_idle="Storage, data loading and collectives over sockets are slow there. [[Compare it with other "
        "nodes]]: on one node look for errors and drops of its interfaces, on many at the switches "
        "between them.",
        for_seconds=config.confirm_seconds,
    )


def _clock_wrong(config: RuleConfig) -> Fault:
    """A ticket: ages and pauses are differences between a node's clock and that of Prometheus."""
    return Fault(
        alert=Alert.CLOCK_WRONG,
        part=NODE,
        summary="The clock of a node may be wrong.",
        happened="The clock of node {{ $labels.node }} may be off by {{ $value | humanizeDuration }}, by the "
        "bound of its kernel: its time daemon does not set it, or does not trust its servers.",
        ticket=f"""
            max by (cluster, node) (rankwatch_host_clock_max_error_seconds)
            > {config.clock_error_seconds:g}
        """,
        if_idle="Ages of checkpoints, waits and the order of events are wrong there by as much. [[Start the "
        "time daemon of that node]], and look whether it reaches its servers.",
        for_seconds=config.confirm_seconds,
    )


def _clock_differs(config: RuleConfig) -> Fault:
    """A ticket: the same, where the kernel believes in its clock, or no daemon has set it for a short time.

    Of two nodes nobody knows which one is wrong. A scrape that waits for a busy node looks like a clock that
    is ahead, so the difference must last.
    """
    return Fault(
        alert=Alert.CLOCK_WRONG,
        part=NODE,
        reason="differs",
        summary="The clock of a node differs from those of the others.",
        happened="The clock of node {{ $labels.node }} differs by {{ $value | humanizeDuration }} from that "
        "of the median node.",
        ticket=f"""
            abs(
              {CLOCK_AHEAD}
              - on (cluster) group_left ()
              (
                quantile by (cluster) (0.5, {CLOCK_AHEAD})
                and on (cluster)
                (count by (cluster) ({CLOCK_AHEAD}) > 2)
              )
            )
            > {config.clock_error_seconds:g}
        """,
        if_idle="Ages of checkpoints, waits and the order of events are wrong there by as much. [[Compare "
        "the time servers of that node]] with those of another one, and look whether something else sets its "
        "clock.",
        for_seconds=config.collector_for_seconds,
    )


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
        if_idle="If a rank or a data loader was killed, the run ends or hangs: [[look in the kernel log "
        "which process it was]], and give it more memory or fewer loader workers.",
        for_seconds=config.confirm_seconds,
    )


def _disk_filling(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One alert per path, and per run where it pages: a shared file system fills on all nodes at once."""
    free = f"max by ({_PATH}) ({_AVAILABLE}) / max by ({_PATH}) (rankwatch_filesystem_size_bytes)"
    full_soon = _full_within(config, config.disk_page_seconds, _AVAILABLE)
    full_later = _full_within(config, config.disk_ticket_seconds, _AVAILABLE)
    page = f"""
        count by (cluster, run, path) (
          ({free} < {config.disk_free_share:g} and on ({_PATH}) {full_soon})
          * on (cluster, node) group_left (run)
          ({RUN_OF_NODE} > bool 0)
          or
          {_mounts_filling(config)}
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
            "checkpoint of run {{ $labels.run }} may fail. [[Make room now: delete old checkpoints]], and "
            "keep the last good one.",
        ),
        _disk(
            config,
            ticket,
            Severity.WARNING,
            f"has less than {config.disk_free_share:.0%} of its space left, or is full within "
            f"{duration(config.disk_ticket_seconds)} at its present pace. [[Delete old checkpoints, or keep "
            "fewer of them]].",
        ),
    )


def _mounts_filling(config: RuleConfig) -> str:
    """File systems that a run has mounted, without configuration, except memory and read-only ones.

    There is no ticket for them: a run may read from a full file system for as long as it likes.
    """
    share = "rankwatch_run_mount_available_bytes / rankwatch_run_mount_size_bytes"
    full_soon = _full_within(config, config.disk_page_seconds, MOUNT_AVAILABLE)
    return f"""max by ({_PATH}, run) ({share}) < {config.disk_free_share:g}
          and on (cluster, run, path) {full_soon}
          and on ({_PATH}, run) rankwatch_run_mount_info{{type!="tmpfs"}}
          unless on ({_PATH}, run) rankwatch_run_mount_read_only == 1"""


def _full_within(config: RuleConfig, seconds: float, available: str) -> str:
    return f"predict_linear({available}[{duration(config.disk_history_seconds)}], {seconds:g}) < 0"


def _disk(config: RuleConfig, expression: str, severity: Severity, text: str) -> AlertRule:
    of_path = "{cluster=%q, path=%q}"
    size = f"(rankwatch_filesystem_size_bytes{of_path} or rankwatch_run_mount_size_bytes{of_path})"
    available = f"({_AVAILABLE}{of_path} or rankwatch_run_mount_available_bytes{of_path})"
    nodes = listed(
        f"topk(5, max by (node) {size} unless on (node) "
        f"(max by (node) {available} / max by (node) {size} > 0.5))",
        ("cluster", "path") * 6,
        "{{ $series.Labels.node }}",
        "not known",
        by="node",
    )
    left = value_of(f"min{available}", ("cluster", "path") * 2, "an unknown number of ", "humanize1024")
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
        cost="" if severity is Severity.CRITICAL else NO_RUN,
    )
