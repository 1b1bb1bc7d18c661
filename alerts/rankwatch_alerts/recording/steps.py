"""Which ranks run, when a run last made progress, and its mean step.

Only living ranks count: what an ended one left behind says nothing about the run now.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import ENDED, RANK, RUNNING, STAGE, RecordingRule, duration, recorded

STEP = "run:rankwatch_step_seconds:mean"
MEDIAN = "stage:rankwatch_step_local_seconds:median"
RANKS = "stage:rankwatch_ranks:count"
STALL = "run:rankwatch_stall_seconds:max"
TOKEN_MEDIAN = "stage:rankwatch_token_local_seconds:median"

_SAME_SECONDS = 1.0
"""Two readings of one moment differ by less, also while the clock of the node is being corrected."""
NOT_ENDED = f"unless on ({RANK}) rankwatch_rank_state{{{ENDED}}}"
"""Appended to a series of ranks: only those that run. The ended ranks are few, and cheaper to read."""


def progress_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Which ranks run, and when the run last made progress."""
    return (
        recorded(
            "run:rankwatch_ranks_running:sum",
            f"""
                sum by (cluster, run) ({of_nodes(f"ranks{{{RUNNING}}}", "state")})
                or
                0 * sum by (cluster, run) (rankwatch_node_ranks{{{ENDED}}})
            """,
        ),
        recorded(
            "run:rankwatch_rank_start_timestamp_seconds:min",
            # Of running ranks: whatever ended before this belongs to an earlier attempt.
            "min by (cluster, run) (rankwatch_node_first_start_timestamp_seconds)",
        ),
        *_progress_rules(config),
    )


def _progress_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """When a run last made progress, and how long it may go without; a restart counts as progress."""
    return (
        recorded(
            "run:rankwatch_progress_timestamp_seconds:max",
            "max by (cluster, run) (rankwatch_node_progress_timestamp_seconds)",
        ),
        recorded(
            "run:rankwatch_progress_timeout_seconds:max",
            # A rank without a timeout does what its history does not hold yet, such as a first save.
            f"""
                clamp_min(
                  max by (cluster, run) (rankwatch_node_progress_timeout_seconds),
                  {config.stall_floor_seconds:g}
                )
                unless on (cluster, run)
                (
                  rankwatch_node_first_start_timestamp_seconds
                  unless on (cluster, run, node) rankwatch_node_progress_timeout_seconds
                )
                or
                0 * run:rankwatch_ranks_running:sum + {config.stall_fallback_seconds:g}
            """,
        ),
        recorded(
            STALL,
            # A wrong clock makes progress look old, so progress that is new within the floor counts too.
            # The agent computes the moment anew for each scrape, so it moves a little without progress.
            f"""
            time() - run:rankwatch_progress_timestamp_seconds:max
            > run:rankwatch_progress_timeout_seconds:max
            and
            run:rankwatch_ranks_running:sum > 0
            unless
            run:rankwatch_progress_timestamp_seconds:max
            > run:rankwatch_progress_timestamp_seconds:max offset {duration(config.stall_floor_seconds)}
            + {_SAME_SECONDS:g}
            """,
        ),
    )


def step_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The mean step of a run. Its ranks wait for each other, so each node shows that of all ranks."""
    return (
        recorded(
            STEP,
            f"quantile by (cluster, run) (0.5, {recent(config, 'run_step_seconds')})",
        ),
    )


def estimate(record: str) -> str:
    """The name of what the record of a cause is copied from: it is evaluated more seldom, because it reads
    each node."""
    return f"{record.rpartition(':')[0]}:estimate"


def of_nodes(name: str, by: str) -> str:
    """What agents say of the ranks of a run on each node; once, where an agent has just moved."""
    return f"max by (cluster, run, node, {by}) (rankwatch_node_{name})"


def recent(config: RuleConfig, name: str) -> str:
    """What agents say of the steps of the last minutes; of a node that was not scraped, what it said last."""
    return f"last_over_time(rankwatch_recent_{name}[{duration(config.missed_seconds)}])"


EVERY_RANK = '{shown=""}'
"""Matcher of series of ranks, in runs of which each rank is exported: not in large ones."""


def of_all(config: RuleConfig, name: str) -> str:
    """What agents say of all ranks of a stage: of each, or in large runs of both halves of a node's.

    The median of both halves' medians is that of the ranks; of large runs, single ranks are exported only
    where they may stand out (`max_single_ranks` of the agent).
    """
    return f"({recent(config, f'half_{name}')} or {recent(config, f'{name}{EVERY_RANK}')})"


def median_of_stage(config: RuleConfig, name: str) -> str:
    """Median over the nodes of what agents say of the median rank of a stage on each.

    It stays put while fewer than half of the nodes are off, and costs a series for each node, not each rank.
    Where a single rank may be at fault, the median of the ranks is taken: of few nodes, one is too many.
    """
    return f"quantile by ({STAGE}) (0.5, {recent(config, f'stage_{name}')})"
