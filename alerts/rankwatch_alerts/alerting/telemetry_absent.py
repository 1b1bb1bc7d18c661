"""RankwatchTelemetryAbsent: what the other alerts rest on is missing, so their silence means nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rankwatch_alerts.alerting.annotations import alert_annotations, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity

OF_RUNNING_RANKS: tuple[str, ...] = (
    "rankwatch_rank_info",
    "rankwatch_steps_total",
    "rankwatch_step_seconds_total",
    "rankwatch_step_local_seconds_total",
    "rankwatch_step_phase_seconds_total",
    "rankwatch_progress_timestamp_seconds",
)
"""Metrics every rank in state running has."""

OF_RANKS_THAT_HAD_THEM: Mapping[str, str] = MappingProxyType(
    {
        "rankwatch_scalar_nonfinite_total": '{name="loss"}',
        "rankwatch_loss_deviation": "",
        "rankwatch_checkpoint_operations_total": '{operation="save", outcome="failure"}',
        "rankwatch_late_step_seconds_total": "",
        "rankwatch_step_variation_total": '{term=~"local|forward"}',
    }
)
"""Metrics not every run has, but which must not vanish from a running rank that had them.

With the matchers of those of its series without which there is none: a long memory of all would be dear.
"""


def telemetry_absent(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One rule per way of being blind; the label `reason` tells them apart."""
    return (
        _run_vanished(config),
        _agent_down(config),
        _agents_missing(config),
        _collectors_missing(config),
        *(_metric_missing(config, each) for each in OF_RUNNING_RANKS),
        *(_metric_vanished(config, *each) for each in OF_RANKS_THAT_HAD_THEM.items()),
    )


def _rule(
    config: RuleConfig, reason: str, severity: Severity, expression: str, description: str, *, of_run: bool
) -> AlertRule:
    return AlertRule(
        alert=Alert.TELEMETRY_ABSENT,
        expression=promql(expression),
        for_seconds=config.absence_for_seconds,
        severity=severity,
        labels={"reason": reason},
        annotations=alert_annotations(
            config,
            Alert.TELEMETRY_ABSENT,
            summary="Telemetry that alerts rest on is absent, so their silence means nothing.",
            description=description,
            of_run=of_run,
        ),
    )


def _run_vanished(config: RuleConfig) -> AlertRule:
    """Ranks whose last known state was running and which have said nothing since.

    Ended runs are remembered with 0 running ranks and stay silent; absent() could name no run.
    """
    memory, window = duration(config.absence_memory_seconds), duration(config.absence_window_seconds)
    return _rule(
        config,
        "run_vanished",
        Severity.CRITICAL,
        f"""
            count by (cluster, run) (
              last_over_time(rank:rankwatch_rank_running:bool[{memory}]) == 1
              unless
              present_over_time(rank:rankwatch_rank_running:bool[{window}])
            )
        """,
        "{{ $value }} rank(s) of run {{ $labels.run }} were running and have sent nothing for "
        f"{window}. The run may have died with its nodes, or only the agents have: check the nodes first.",
        of_run=True,
    )


def _agent_down(config: RuleConfig) -> AlertRule:
    instances = listed(
        f'topk(5, up{{job="{config.agent_job}"}} == 0)', (), "{{ $series.Labels.instance }}", "none any more"
    )
    return _rule(
        config,
        "agent_down",
        Severity.WARNING,
        f'count by (job) (up{{job="{config.agent_job}"}} == 0)',
        "{{ $value }} agent(s) of job {{ $labels.job }} cannot be scraped, among them "
        f"{instances}. Runs on these nodes are not watched: start the agents again.",
        of_run=False,
    )


def _agents_missing(config: RuleConfig) -> AlertRule:
    return _rule(
        config,
        "agents_missing",
        Severity.CRITICAL,
        "absent(rankwatch_agent_info)",
        "This Prometheus receives nothing from any agent, so no run is watched: check the agents and the "
        "scrape configuration.",
        of_run=False,
    )


def _collectors_missing(config: RuleConfig) -> AlertRule:
    return _rule(
        config,
        "collector_state",
        Severity.WARNING,
        """
            group by (cluster, node) (rankwatch_agent_info)
            unless
            group by (cluster, node) (rankwatch_collector_state)
        """,
        "The agent on node {{ $labels.node }} runs but reports no collector, so their failures would go "
        "unseen. Restart the agent and read its log.",
        of_run=False,
    )


def _metric_missing(config: RuleConfig, metric: str) -> AlertRule:
    return _rule(
        config,
        metric,
        Severity.WARNING,
        f"""
            count by (cluster, run) (
              group by (cluster, run, rank) (
                rankwatch_rank_state{{state="running"}}
                unless on (cluster, run, rank)
                {metric}
              )
            )
        """,
        f"{{{{ $value }}}} running rank(s) of run {{{{ $labels.run }}}} have no {metric}. Alerts that "
        "rest on it cannot fire for them: check the versions of agent and instrumentation, and the "
        "agent's log.",
        of_run=True,
    )


def _metric_vanished(config: RuleConfig, metric: str, matchers: str) -> AlertRule:
    memory = duration(config.absence_memory_seconds)
    return _rule(
        config,
        metric,
        Severity.WARNING,
        f"""
            count by (cluster, run) (
              group by (cluster, run, rank) (
                present_over_time({metric}{matchers}[{memory}])
                unless on (cluster, run, rank)
                {metric}{matchers}
              )
              and
              (rank:rankwatch_rank_running:bool == 1)
            )
        """,
        f"{{{{ $value }}}} running rank(s) of run {{{{ $labels.run }}}} had {metric} and have it no "
        "more. Alerts that rest on it cannot fire for them: see whether the run was restarted without it, "
        "then read the agent's log.",
        of_run=True,
    )
