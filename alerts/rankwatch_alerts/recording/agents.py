"""The agents: which node each one watches, and collectors that fail."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RecordingRule, duration, recorded

AGENT = "instance:rankwatch_agent:info"
FAILING = "collector:rankwatch_collector_failing:bool"


def agent_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The node of each agent, which is remembered while the agent is down."""
    return (
        recorded(
            AGENT,
            f"""
                group by (cluster, node, instance) (rankwatch_agent_info)
                or
                (
                  last_over_time({AGENT}[{duration(config.absence_lookback_seconds)}])
                  and on (instance)
                  up{{job="{config.agent_job}"}} == 0
                )
            """,
        ),
    )


def failing_rule(config: RuleConfig) -> RecordingRule:
    """A collector fails, or has not succeeded for long. Absent hardware (`not_applicable`) is no failure."""
    by = "cluster, node, collector"
    return recorded(
        FAILING,
        f"""
            group by ({by}) (
              rankwatch_collector_state{{state="failed"}} == 1
              or
              rankwatch_collector_overdue_intervals > {config.collector_overdue_intervals:g}
            )
        """,
    )
