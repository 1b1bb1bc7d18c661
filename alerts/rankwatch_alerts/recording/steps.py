"""Which ranks run, when a run last made progress, and the mean step of each rank.

Only living ranks count: what an ended one left behind says nothing about the run now.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import ENDED, RANK, RUNNING, RecordingRule, duration, recorded

LIVING = f"and on ({RANK}) (rankwatch_rank_state{{{RUNNING}}} == 1)"
"""Appended to a series of ranks: only those that run."""


def progress_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Which ranks run, and when the run last made progress."""
    return (
        recorded(
            "rank:rankwatch_rank_running:bool",
            # A rank restarted on another node is lost on the old one and runs on the new one: it runs.
            f"""
                max by (cluster, run, rank) (rankwatch_rank_state{{{RUNNING}}})
                or
                0 * max by (cluster, run, rank) (rankwatch_rank_state{{{ENDED}}})
            """,
        ),
        recorded(
            "run:rankwatch_ranks_running:sum",
            "sum by (cluster, run) (rank:rankwatch_rank_running:bool)",
        ),
        recorded(
            "run:rankwatch_rank_start_timestamp_seconds:min",
            # Of running ranks: whatever ended before this belongs to an earlier attempt.
            f"""
                min by (cluster, run) (rankwatch_rank_start_timestamp_seconds {LIVING})
            """,
        ),
        *_progress_rules(config),
    )


def _progress_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """When a run last made progress, and how long it may go without; a restart counts as progress."""
    return (
        recorded(
            "run:rankwatch_progress_timestamp_seconds:max",
            # The later of both; the label `of` keeps them apart.
            f"""
                max by (cluster, run) (
                  max by (cluster, run) (rankwatch_progress_timestamp_seconds {LIVING})
                  or
                  label_replace(
                    max by (cluster, run) (rankwatch_rank_start_timestamp_seconds {LIVING}),
                    "of", "start", "", ""
                  )
                )
            """,
        ),
        recorded(
            "run:rankwatch_progress_timeout_seconds:max",
            # A rank without a timeout does what its history does not hold yet, such as a first save.
            f"""
                clamp_min(
                  max by (cluster, run) (rankwatch_progress_timeout_seconds {LIVING}),
                  {config.stall_floor_seconds:g}
                )
                unless on (cluster, run)
                (
                  rank:rankwatch_rank_running:bool == 1
                  unless on (cluster, run, rank) rankwatch_progress_timeout_seconds
                )
                or
                0 * run:rankwatch_ranks_running:sum + {config.stall_fallback_seconds:g}
            """,
        ),
    )


def step_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Seconds over steps of the same window, both read at the same instants: a true mean per step."""
    window = duration(config.step_window_seconds)
    placed = f"{RANK}, stage, replica"
    known = f"group by ({placed}) (last_over_time(rankwatch_rank_info[{window}]))"
    return (
        recorded(
            "rank:rankwatch_rank_stage:info",
            # A rank seen in two stages is mid-restart; joining it would be many-to-many: left out. A rank
            # whose node was not scraped is where it was: the rates that are joined go on as well.
            f"""
                group by ({placed}) (rankwatch_rank_info)
                unless on ({RANK})
                (count by ({RANK}) (group by ({placed}) (rankwatch_rank_info)) > 1)
                or on ({RANK})
                {known}
                unless on ({RANK})
                (count by ({RANK}) ({known}) > 1)
            """,
        ),
        recorded(
            "rank:rankwatch_steps:rate",
            f"""
                (sum by ({RANK}) (rate(rankwatch_steps_total[{window}])) > 0)
                * on ({RANK}) group_left (stage) rank:rankwatch_rank_stage:info
            """,
        ),
        mean_per_step("rank:rankwatch_step_seconds:mean", "rankwatch_step_seconds_total", window),
        mean_per_step("rank:rankwatch_step_local_seconds:mean", "rankwatch_step_local_seconds_total", window),
        recorded(
            "run:rankwatch_step_seconds:mean",
            "quantile by (cluster, run) (0.5, rank:rankwatch_step_seconds:mean)",
        ),
    )


def mean_per_step(record: str, counter: str, window: str) -> RecordingRule:
    """Mean of a counter per step of each rank."""
    return recorded(
        record,
        f"""
            sum by ({RANK}) (rate({counter}[{window}]))
            / on ({RANK}) group_right ()
            rank:rankwatch_steps:rate
        """,
    )
