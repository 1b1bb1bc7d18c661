"""Which rank holds the others up, and why?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import Panel, Query
from rankwatch_dashboards.selectors import RANKS, most


def panels(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        _residual_per_rank(config),
        _LOCAL_TIME_PER_RANK,
        _EXCESS_BY_PHASE,
        _suspected_stragglers(config),
        _COMMUNICATION_SHARE_PER_RANK,
    )


def _residual_per_rank(config: RuleConfig) -> Panel:
    return Panel(
        title="Residual per rank",
        description="Local time of a rank over the median of its stage, minus one, adjusted for work. "
        "Above the line for minutes, and beyond the spread of its peers: RankwatchStraggler.",
        unit="percentunit",
        threshold=config.straggler_residual,
        queries=(
            Query(
                expression=most(f"rank:rankwatch_step_local_seconds:residual{{{RANKS}}}"),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    )


_LOCAL_TIME_PER_RANK = Panel(
    title="Local time per rank",
    description="Seconds per step in which the rank works and is not blocked by others. The slowest "
    "20; one line apart from the rest is a straggler, two bands are two stages.",
    unit="s",
    queries=(
        Query(
            expression=most(f"rank:rankwatch_step_local_seconds:mean{{{RANKS}}}"),
            legend="rank {{rank}} on {{node}}",
        ),
    ),
)


_EXCESS_BY_PHASE = Panel(
    title="Excess by phase",
    description="Seconds per step by which a rank's phases exceed its peers': compute, data_loading, "
    "checkpoint, other. The largest 20; the phase that holds more than half of a rank's excess is named.",
    unit="s",
    queries=(
        Query(
            expression=most(f"rank_phase:rankwatch_step_local_seconds:excess{{{RANKS}}}"),
            legend="rank {{rank}} on {{node}} {{phase}}",
        ),
    ),
)


def _suspected_stragglers(config: RuleConfig) -> Panel:
    return Panel(
        title="Suspected stragglers: slowdown",
        description="How many times longer the run takes than with this rank at its peers' pace. Only "
        "ranks that meet every condition of RankwatchStraggler have a line.",
        unit="short",
        span=12,
        threshold=config.straggler_critical_slowdown,
        empty_when_healthy=True,
        queries=(
            Query(
                expression=most(f"rank:rankwatch_straggler:slowdown{{{RANKS}}}"),
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    )


_COMMUNICATION_SHARE_PER_RANK = Panel(
    title="Communication share per rank",
    description="Share of the step blocked in collectives, waiting included; the lowest 20. The "
    "straggler waits least: it is the low line here and the high one in local time.",
    unit="percentunit",
    span=12,
    queries=(
        Query(
            expression="bottomk(20, sum by (rank, node) (rate(rankwatch_step_phase_seconds_total"
            f'{{{RANKS}, phase="communication"}}[$__rate_interval])) / sum by (rank, node) '
            f"(rate(rankwatch_step_seconds_total{{{RANKS}}}[$__rate_interval])))",
            legend="rank {{rank}} on {{node}}",
        ),
    ),
)
