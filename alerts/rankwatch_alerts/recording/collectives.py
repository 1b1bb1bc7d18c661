"""Collectives: who waits for whom, and how fast the groups transfer.

Durations of collectives are inverted evidence: the rank that all wait for spends the least time in
them. So wait and transfer are told apart by the agents, among the ranks of a node, and compared here.
The transfer time itself stands with the rules of the network.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.rules import RecordingRule

GROUP = "cluster, run, group, members"
_KIND = f"{GROUP}, operation, size_class"


def collective_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Wait by rank, arrival skew and bus bandwidth by group."""
    window = duration(config.step_window_seconds)
    return (_wait_share_rule(window), *_skew_rules(window), _bus_bandwidth_rule(window))


def _wait_share_rule(window: str) -> RecordingRule:
    return RecordingRule(
        record="rank:rankwatch_collective_wait:share",
        expression=promql(f"""
            sum by ({RANK}) (rate(rankwatch_collective_wait_seconds_total[{window}]))
            / on ({RANK}) group_right ()
            (rank:rankwatch_step_seconds:mean * rank:rankwatch_steps:rate > 0)
        """),
    )


def _skew_rules(window: str) -> tuple[RecordingRule, ...]:
    """Waits are measured against the last arriver of a node, so ranks are compared within each node."""
    by_rank = f"{RANK}, group, members"
    wait = "rank_group:rankwatch_collective_wait_seconds:mean"
    return (
        RecordingRule(
            record=wait,
            # Sends and receives have no wait, and do not count here.
            expression=promql(f"""
                sum by ({by_rank}) (rate(rankwatch_collective_wait_seconds_total[{window}]))
                / on ({by_rank})
                (
                  sum by ({by_rank}) (
                    rate(rankwatch_collectives_total{{operation!~"send|recv"}}[{window}])
                    and present_over_time(rankwatch_collective_wait_seconds_total[{window}])
                  )
                  > 0
                )
            """),
        ),
        RecordingRule(
            record="group:rankwatch_collective_wait_seconds:skew",
            expression=promql(f"""
                max by ({GROUP}) (
                  max by ({GROUP}, node) ({wait})
                  - on ({GROUP}, node)
                  min by ({GROUP}, node) ({wait})
                )
            """),
        ),
    )


def _bus_bandwidth_rule(window: str) -> RecordingRule:
    return RecordingRule(
        record="group:rankwatch_collective_bus_bandwidth:max",
        expression=promql(f"""
            max by ({_KIND}) (
              sum by ({_KIND}, node) (rate(rankwatch_collective_bus_bytes_total[{window}]))
              / on ({_KIND}, node)
              (sum by ({_KIND}, node) (rate(rankwatch_collective_transfer_seconds_total[{window}])) > 0)
            )
        """),
    )
