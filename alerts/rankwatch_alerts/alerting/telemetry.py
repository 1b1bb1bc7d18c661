"""Alerts on the telemetry itself: what the other alerts depend on is missing, or a collector fails."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch.conventions.node_sums import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch_alerts.alerting.alert import alert_rule, lasting
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.agents import AGENT, FAILING, watched
from rankwatch_alerts.recording.steps import of_nodes
from rankwatch_alerts.rules import RUNNING, Alert, AlertRule, Severity, duration
from rankwatch_alerts.servers import FLEET_JOB, SHARDS_JOB

_REPORTING = "rankwatch_node_ranks_reporting"
_METRIC = "cluster, run, node, name"
_LIVING = f"sum by (cluster, run, node) ({of_nodes(f'ranks{{{RUNNING}}}', 'state')})"


def telemetry_absent(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One rule per way of being blind; the label `reason` tells them apart."""
    return (
        _run_vanished(config),
        _agent_down(config),
        _agents_missing(config),
        _server_down(config),
        _collectors_missing(config),
        _metrics_missing(config),
    )


def _absent(
    config: RuleConfig,
    reason: str,
    expression: str,
    description: str,
    *,
    severity: Severity = Severity.WARNING,
    for_seconds: float = 0,
    of_run: bool = True,
) -> AlertRule:
    return alert_rule(
        config,
        Alert.TELEMETRY_ABSENT,
        expression,
        for_seconds=for_seconds or config.absence_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=severity,
        labels={"reason": reason} if reason else {},
        summary="Telemetry that alerts depend on is absent, so their silence means nothing.",
        description=description,
        of_run=of_run,
    )


def _run_vanished(config: RuleConfig) -> AlertRule:
    """A run that had running ranks, and of which no rank has been seen since.

    Ended runs are remembered with 0 running ranks and stay silent; absent() could name no run.
    """
    lookback, window = duration(config.absence_lookback_seconds), duration(config.absence_window_seconds)
    return _absent(
        config,
        "run_vanished",
        f"""
            last_over_time(run:rankwatch_ranks_running:sum[{lookback}]) > 0
            unless
            present_over_time(run:rankwatch_ranks_running:sum[{window}])
            {watched(config)}
        """,
        "{{ $value }} rank(s) of run {{ $labels.run }} were running and have sent nothing for "
        f"{window}. The run may have died with its nodes, or only the agents have: [[check the nodes first]]."
        "",
        severity=Severity.CRITICAL,
    )


def _agent_down(config: RuleConfig) -> AlertRule:
    """One alert for each agent: in a roll-out some agent is always down, but none for long."""
    down = f'up{{job="{config.agent_job}"}} == 0'
    return _absent(
        config,
        "agent_down",
        f"""
            group by (cluster, node, instance) ({AGENT} and on (instance) {down})
            or on (instance)
            label_replace(group by (cluster, instance) ({down}), "node", "$1", "instance", "(.*):.*")
        """,
        "The agent on node {{ $labels.node }} ({{ $labels.instance }}) cannot be scraped. Runs on this node "
        "are not watched: [[start the agent again]], unless the node itself is gone.",
        for_seconds=config.agent_down_for_seconds,
        of_run=False,
    )


def _agents_missing(config: RuleConfig) -> AlertRule:
    return _absent(
        config,
        "agents_missing",
        f"""
            absent_over_time(rankwatch_agent_info[{duration(config.absence_window_seconds / 2)}])
            {watched(config)}
        """,
        "This Prometheus receives nothing from any agent, so no run is watched: [[check the agents and the "
        "scrape configuration]].",
        severity=Severity.CRITICAL,
        of_run=False,
    )


def _server_down(config: RuleConfig) -> AlertRule:
    """Servers that share the rules watch each other: the watchdogs of all are one alert."""
    return _absent(
        config,
        "prometheus_down",
        f'group by (job, instance) (up{{job=~"{SHARDS_JOB}|{FLEET_JOB}"}} == 0)',
        "The Prometheus at {{ $labels.instance }} (one of {{ $labels.job }}) does not answer, so its rules "
        "raise no alert: [[start it again]].",
        for_seconds=config.agent_down_for_seconds,
        severity=Severity.CRITICAL,
        of_run=False,
    )


def _collectors_missing(config: RuleConfig) -> AlertRule:
    return _absent(
        config,
        "collector_state",
        """
            group by (cluster, node) (rankwatch_agent_info)
            unless
            group by (cluster, node) (rankwatch_collectors > 0)
        """,
        "The agent on node {{ $labels.node }} runs but reports no collector, so their failures would go "
        "unseen. [[Restart the agent and read its log]].",
        of_run=False,
    )


def _metrics_missing(config: RuleConfig) -> AlertRule:
    """Metrics that every running rank has, and those that a rank must not lose; `reason` is the name.

    Of ranks that live on the node now: one that has ended has nothing to report. What ranks had is
    looked up at a few moments: the maximum of half an hour would read every sample of it.
    """
    seen = _selected(OF_RANKS_THAT_HAD_THEM)
    each = (f'label_replace({seen} offset {at}, "at", "{at}", "", "")' for at in _moments(config))
    had = f"max by ({_METRIC}) ({' or '.join(each)})"
    return _absent(
        config,
        "",
        f"""
            sum by (cluster, run, reason) (
              label_replace(
                {of_nodes('ranks{state="running"}', "state")}
                - on (cluster, run, node) group_right ()
                {_reporting(OF_RUNNING_RANKS)}
                > 0
                or
                {_LIVING}
                - on (cluster, run, node) group_right ()
                ({_reporting(OF_RANKS_THAT_HAD_THEM)} < on ({_METRIC}) {had})
                > 0,
                "reason", "$1", "name", "(.+)"
              )
            )
        """,
        "{{ $value }} running rank(s) of run {{ $labels.run }} have no {{ $labels.reason }}, or no "
        "longer have it. Alerts that depend on it cannot fire for them: [[check the versions of agent and "
        "instrumentation]], whether the run was restarted without it, and the agent's log.",
    )


def _moments(config: RuleConfig) -> list[str]:
    """How long ago: twice as far each time, so that also a run that is minutes old is seen at one of them."""
    moments, back = [config.absence_window_seconds], config.absence_lookback_seconds
    while 2 * moments[-1] < back:
        moments.append(2 * moments[-1])
    return [duration(each) for each in (*moments, back)]


def _selected(metrics: Iterable[str]) -> str:
    return f'{_REPORTING}{{name=~"{"|".join(metrics)}"}}'


def _reporting(metrics: Iterable[str]) -> str:
    return f"max by ({_METRIC}) ({_selected(metrics)})"


def collector_failing(config: RuleConfig) -> AlertRule:
    """A collector fails, or has not succeeded for long."""
    return alert_rule(
        config,
        Alert.COLLECTOR_FAILING,
        lasting(
            config,
            Alert.COLLECTOR_FAILING,
            Severity.WARNING,
            condition=FAILING,
            record=FAILING,
            by=("cluster", "node", "collector"),
            seconds=config.collector_for_seconds,
        ),
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A collector of the agent fails or has not succeeded for long.",
        description=(
            "Collector {{ $labels.collector }} of the agent on node {{ $labels.node }} fails or "
            "is overdue; what it measures is missing there. [[Read the agent's log for the reason]]."
        ),
        of_run=False,
    )


def rules_failing(config: RuleConfig) -> AlertRule:
    """Prometheus cannot evaluate rules, so their alerts are silent. One failure alone costs an evaluation."""
    window = duration(config.absence_window_seconds)
    return alert_rule(
        config,
        Alert.RULES_FAILING,
        f"""
            max by (rule_group) (
              increase(prometheus_rule_evaluation_failures_total{{rule_group=~".*;rankwatch-.*"}}[{window}])
            ) > 2
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="Prometheus cannot evaluate rules of rankwatch, so alerts are silent.",
        description=(
            "Rules of the group {{ $labels.rule_group }} have failed {{ $value | humanize }} times in the "
            f"last {window}. Their alerts cannot fire: [[read the errors on the page /rules of Prometheus]]."
        ),
        of_run=False,
    )


def watchdog(config: RuleConfig) -> AlertRule:
    """The dead-man's switch. It goes on no longer than its condition: its silence is the message."""
    return alert_rule(
        config,
        Alert.WATCHDOG,
        "count by (cluster) (rankwatch_agent_info) > 0",
        for_seconds=0,
        keep_firing_seconds=0,
        severity=Severity.INFO,
        summary="Agents answer, rules are evaluated, and Alertmanager gets alerts.",
        description=(
            "{{ $value }} agent(s) answer, and rules are evaluated. This alert always fires; the service "
            "that gets it pages when it stops."
        ),
        of_run=False,
    )
