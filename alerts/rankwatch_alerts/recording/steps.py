"""Mean seconds per step of each rank, whole and local."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import RecordingRule

RANK = "cluster, run, rank, node"
"""A rank where it runs; summing by it drops `instance`, so that a restarted agent makes no duplicate."""


def step_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Seconds over steps of the same window, both read at the same instants: a true mean per step."""
    window = duration(config.step_window_seconds)
    return (
        RecordingRule(
            record="rank:rankwatch_rank_stage:info",
            # A rank seen in two stages is mid-restart; joining it would be many-to-many: left out.
            expression=promql(f"""
                group by ({RANK}, stage) (rankwatch_rank_info)
                unless on ({RANK})
                (count by ({RANK}) (group by ({RANK}, stage) (rankwatch_rank_info)) > 1)
            """),
        ),
        RecordingRule(
            record="rank:rankwatch_steps:rate",
            expression=promql(f"""
                (sum by ({RANK}) (rate(rankwatch_steps_total[{window}])) > 0)
                * on ({RANK}) group_left (stage) rank:rankwatch_rank_stage:info
            """),
        ),
        _mean_per_step("rank:rankwatch_step_seconds:mean", "rankwatch_step_seconds_total", window),
        _mean_per_step(
            "rank:rankwatch_step_local_seconds:mean", "rankwatch_step_local_seconds_total", window
        ),
        RecordingRule(
            record="run:rankwatch_step_seconds:mean",
            expression="quantile by (cluster, run) (0.5, rank:rankwatch_step_seconds:mean)",
        ),
    )


def _mean_per_step(record: str, counter: str, window: str) -> RecordingRule:
    return RecordingRule(
        record=record,
        expression=promql(f"""
            sum by ({RANK}) (rate({counter}[{window}]))
            / on ({RANK}) group_right ()
            rank:rankwatch_steps:rate
        """),
    )
