"""Jitter: single late steps of many ranks, none late for long; and what they cost together."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.rules import RecordingRule


def jitter_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Time of late steps by rank, and its sum over the ranks where it is nobody's own affair.

    A late rank holds up all others, so the run loses the sum over the ranks, as long as no two are late
    in the same step; and it cannot lose more than the time its ranks wait.
    """
    window = duration(config.step_window_seconds)
    late, lately = "rank:rankwatch_late_step_seconds:mean", "rank:rankwatch_late_step_seconds:lately"
    return (
        RecordingRule(
            record=late,
            expression=promql(f"""
                sum by ({RANK}) (rate(rankwatch_late_step_seconds_total[{window}]))
                / on ({RANK}) group_right ()
                rank:rankwatch_steps:rate
            """),
        ),
        RecordingRule(
            record=lately,
            # A window of long steps holds few late ones, and the longest of few is often most of them:
            # whether they are spread is judged over as long as they must last.
            expression=f"avg_over_time({late}[{duration(config.cause_for_seconds)}])",
        ),
        RecordingRule(
            record="run:rankwatch_late_step_seconds:share",
            expression=promql(f"""
                sum by (cluster, run) ({late})
                / on (cluster, run)
                (run:rankwatch_step_seconds:mean > 0)
            """),
        ),
        RecordingRule(
            record="run:rankwatch_jitter:share",
            expression=promql(f"""
                (
                  run:rankwatch_late_step_seconds:share
                  < on (cluster, run)
                  run:rankwatch_step_waiting:share
                  or
                  run:rankwatch_step_waiting:share
                  and on (cluster, run)
                  run:rankwatch_late_step_seconds:share
                )
                > {config.cause_cost:g}
                and on (cluster, run)
                (count by (cluster, run) ({lately} > 0) >= {config.jitter_ranks})
                and on (cluster, run)
                (
                  max by (cluster, run) ({lately})
                  <= on (cluster, run)
                  ({config.jitter_rank_share:g} * sum by (cluster, run) ({lately}))
                )
                unless on (cluster, run)
                run:rankwatch_unequal_batches:share
            """),
        ),
    )
