"""Rows: could work be lost, and what do checkpoints cost?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import RANKS, RUN, Drawing, Panel, Query


def at_a_glance(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert, also on the dashboard of a run."""
    return (
        _age_of_the_last_good_checkpoint(config),
        _CHECKPOINT_TIME_BY_STAGE,
        _CHECKPOINT_BLOCKING,
        _CHECKPOINT_FAILURES,
    )


def _age_of_the_last_good_checkpoint(config: RuleConfig) -> Panel:
    return Panel(
        title="Age of the last good checkpoint",
        description="Work that would be lost now. Above the line: RankwatchCheckpointStale. A saw-tooth "
        "is healthy.",
        unit="s",
        threshold=config.checkpoint_age_budget_seconds,
        queries=(
            Query(
                expression=f"time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max{{{RUN}}}",
                legend="{{run}}",
            ),
        ),
    )


_CHECKPOINT_TIME_BY_STAGE = Panel(
    title="Checkpoint time by stage",
    description="Share of time spent in each stage of checkpoint operations. A growing write or "
    "fsync points to the storage.",
    unit="percentunit",
    drawing=Drawing.STACKED,
    queries=(
        Query(
            expression="sum by (operation, checkpoint_stage) (rate("
            f"rankwatch_checkpoint_stage_seconds_total{{{RANKS}}}[$__rate_interval]))",
            legend="{{operation}} {{checkpoint_stage}}",
        ),
    ),
)


_CHECKPOINT_BLOCKING = Panel(
    title="Time blocked by checkpoints",
    description="Share of time for which checkpoints block training, on the worst rank. The rest of their "
    "time goes by beside training.",
    unit="percentunit",
    queries=(
        Query(
            expression="max by (operation) (rate("
            f"rankwatch_checkpoint_blocking_seconds_total{{{RANKS}}}[$__rate_interval]))",
            legend="{{operation}}",
        ),
    ),
)


_CHECKPOINT_FAILURES = Panel(
    title="Checkpoint failures",
    description="Failed operations in the last minutes. Any save or verify above zero raises "
    "RankwatchCheckpointFailed.",
    unit="short",
    queries=(
        Query(
            expression="sum by (operation) (increase(rankwatch_checkpoint_operations_total"
            f'{{{RANKS}, outcome="failure"}}[$__rate_interval]))',
            legend="{{operation}}",
        ),
    ),
)
