"""Who watches: the server that evaluates the rules, the agent of each node, and its collectors that fail."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RecordingRule, duration, recorded

AGENT = "instance:rankwatch_agent:info"
FAILING = "collector:rankwatch_collector_failing:bool"
_EVALUATED = "server:rankwatch_rules_evaluated:bool"


def evaluated_rule() -> RecordingRule:
    """That the rules were evaluated at this moment.

    It stands in the group of what is remembered of runs: where one has a gap, so has the other.
    """
    return recorded(_EVALUATED, "vector(1)")


def watched(config: RuleConfig) -> str:
    """A condition of alerts on what is absent for the absence window: the server watched through it.

    A server that has just started again remembers runs, but has not yet scraped anything: their silence is
    its own. Rules evaluated in the first half of the window have since had the second half to see a scrape.
    """
    half = duration(config.absence_window_seconds / 2)
    return f"and on () present_over_time({_EVALUATED}[{half}] offset {half})"


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
