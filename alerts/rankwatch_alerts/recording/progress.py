"""Who runs, when a run last moved, and how long it may stand still."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import ENDED, RUNNING, promql
from rankwatch_alerts.rules import RecordingRule


def progress_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Aggregated by rank or run first, so that a restarted agent counts no rank twice."""
    return (
        RecordingRule(
            record="rank:rankwatch_rank_running:bool",
            # A rank restarted on another node is lost on the old one and runs on the new one: it runs.
            expression=promql(f"""
                max by (cluster, run, rank) (rankwatch_rank_state{{{RUNNING}}})
                or
                0 * max by (cluster, run, rank) (rankwatch_rank_state{{{ENDED}}})
            """),
        ),
        RecordingRule(
            record="run:rankwatch_ranks_running:sum",
            expression="sum by (cluster, run) (rank:rankwatch_rank_running:bool)",
        ),
        RecordingRule(
            record="run:rankwatch_rank_start_timestamp_seconds:min",
            # Of ranks that run: what ended before this was of an earlier attempt.
            expression=promql(f"""
                min by (cluster, run) (
                  rankwatch_rank_start_timestamp_seconds
                  and on (cluster, run, rank, node)
                  (rankwatch_rank_state{{{RUNNING}}} == 1)
                )
            """),
        ),
        *_progress_rules(config),
        RecordingRule(
            record="run:rankwatch_checkpoint_last_good_timestamp_seconds:max",
            # The earliest start remembered: a run that restarts again and again saves nothing either.
            expression=promql(f"""
                max by (cluster, run) (rankwatch_checkpoint_last_good_timestamp_seconds)
                or
                min by (cluster, run) (
                  min_over_time(rankwatch_rank_start_timestamp_seconds[{duration(config.absence_memory_seconds)}])
                )
            """),
        ),
    )


def _progress_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """When a run last moved, and for how long it may not; a restart counts as a move."""
    return (
        RecordingRule(
            record="run:rankwatch_progress_timestamp_seconds:max",
            # The later of both; the label keeps them apart.
            expression=promql("""
                max by (cluster, run) (
                  max by (cluster, run) (rankwatch_progress_timestamp_seconds)
                  or
                  label_replace(
                    max by (cluster, run) (rankwatch_rank_start_timestamp_seconds),
                    "of", "start", "", ""
                  )
                )
            """),
        ),
        RecordingRule(
            record="run:rankwatch_progress_timeout_seconds:max",
            # A rank without one does what its history does not hold: it starts, or saves for the first time.
            expression=promql(f"""
                clamp_min(
                  max by (cluster, run) (rankwatch_progress_timeout_seconds),
                  {config.stall_floor_seconds:g}
                )
                unless on (cluster, run)
                (
                  rank:rankwatch_rank_running:bool == 1
                  unless on (cluster, run, rank) rankwatch_progress_timeout_seconds
                )
                or
                0 * run:rankwatch_ranks_running:sum + {config.stall_fallback_seconds:g}
            """),
        ),
    )
