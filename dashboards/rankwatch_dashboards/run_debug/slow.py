"""Rows: who is slow, or which cause names no rank, and what do the collectives show?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import MOST_SERIES, RANKS, RUN, Drawing, Panel, Query, highest, most


def who_is_slow(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        _CAUSES_BY_COST,
        _lost_by_cause(config),
        _residual_per_rank(config),
        _LOCAL_TIME_PER_RANK,
        _EXCESS_BY_PHASE,
        _suspected_stragglers(config),
        _COMMUNICATION_SHARE_PER_RANK,
    )


_CAUSES_BY_COST = Panel(
    title="Causes by cost",
    description="Share of the run's time that each cause takes now; all that are proved, the most expensive "
    "first in the tooltip. What costs most is worth mending first: find it in the panels and rows below.",
    unit="percentunit",
    span=12,
    empty_when_healthy=True,
    queries=(Query(expression=most(f"run_cause:rankwatch_lost_time:share{{{RUN}}}"), legend="{{cause}}"),),
)


def _lost_by_cause(config: RuleConfig) -> Panel:
    return Panel(
        title="Rank-hours lost, by cause",
        description="What each cause has cost in the range shown: all ranks wait, so an hour lost with 64 "
        "ranks is 64. Multiply by the price of a GPU-hour.",
        unit="h",
        span=12,
        drawing=Drawing.NUMBER,
        empty_when_healthy=True,
        queries=(
            Query(
                expression="sum by (cause) (sum_over_time(run_cause:rankwatch_lost_rank_seconds:rate"
                f"{{{RUN}}}[$__range])) * {config.scrape_interval_seconds:g} / 3600",
                legend="{{cause}}",
            ),
        ),
    )


def _residual_per_rank(config: RuleConfig) -> Panel:
    return Panel(
        title="Residual per rank",
        description="Local time of a rank over the median of its stage, minus one, adjusted for work. Above "
        "the threshold of the run for minutes: RankwatchRunSlow (slow_rank). The threshold follows from how "
        "far the ranks of the run differ; the red line holds while a run is young.",
        unit="percentunit",
        threshold=config.straggler_residual,
        queries=(
            Query(
                expression=f"run:rankwatch_straggler_residual:threshold{{{RUN}}}",
                legend="threshold of the run",
            ),
            Query(
                expression=highest(f"rank:rankwatch_step_local_seconds:residual{{{RANKS}}}"),
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
            expression=highest(f"rankwatch_recent_step_local_seconds{{{RANKS}}}"),
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
            expression=most(
                f"max by (rank, node, stage, phase) (rankwatch_recent_step_phase_seconds{{{RANKS}}}) "
                "- on (stage, phase) group_left () quantile by (stage, phase) "
                f"(0.5, rankwatch_recent_step_phase_seconds{{{RUN}}})"
            ),
            legend="rank {{rank}} on {{node}} {{phase}}",
        ),
    ),
)


def _suspected_stragglers(config: RuleConfig) -> Panel:
    return Panel(
        title="Suspected stragglers: slowdown",
        description="How many times longer the run takes than without the wait for this rank. Only "
        "ranks that meet every condition of RankwatchRunSlow (slow_rank) have a line.",
        unit="short",
        span=12,
        threshold=config.straggler_critical_slowdown,
        empty_when_healthy=True,
        queries=(
            Query(
                expression=highest(f"rank:rankwatch_straggler:slowdown{{{RANKS}}}"),
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


def why_slow(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        Panel(
            title="Compute of each stage",
            description="Median compute time of a pipeline stage over that of the other stages. A stage "
            "above the line in every replica is cut too large: RankwatchRunSlow (slow_stage).",
            unit="short",
            threshold=config.stage_ratio,
            empty_when_healthy=True,
            queries=(
                Query(
                    expression=most(f"stage:rankwatch_step_compute_seconds:ratio{{{RUN}}}"),
                    legend="stage {{stage}}",
                ),
            ),
        ),
        Panel(
            title="Share of the step that waits for data",
            description="The largest 20 ranks. One rank alone is a straggler with phase data_loading; most "
            "ranks together are RankwatchRunSlow (data_loading).",
            unit="percentunit",
            queries=(
                Query(
                    expression=highest(f"rankwatch_recent_data_wait_ratio{{{RANKS}}}"),
                    legend="rank {{rank}} on {{node}}",
                ),
            ),
        ),
        Panel(
            title="Late steps",
            description="Share of the run's time lost to steps that are late by a quarter or more. "
            "Spread over many ranks it is RankwatchRunSlow (jitter).",
            unit="percentunit",
            queries=(
                Query(expression=f"run:rankwatch_late_step_seconds:share{{{RUN}}}", legend="late steps"),
            ),
        ),
    )


_BY = "sum by (group, operation)"
_PLACE = "cluster, run, group, members, source"

COLLECTIVES = (
    Panel(
        title="Time per collective",
        description="Mean time from enqueue to completion, waiting for other ranks included. A rise with no "
        "straggler above points to the network.",
        unit="s",
        queries=(
            Query(
                expression=f"{_BY} (rate(rankwatch_collective_seconds_total{{{RANKS}}}[$__rate_interval])) / "
                f"{_BY} (rate(rankwatch_collectives_total{{{RANKS}}}[$__rate_interval]))",
                legend="{{group}} {{operation}}",
            ),
        ),
    ),
    Panel(
        title="Bytes in collectives",
        description="Input bytes per second over the chosen ranks. It follows the step rate; a change of its "
        "ratio to steps means that the model or its sharding changed.",
        unit="Bps",
        queries=(
            Query(
                expression=f"{_BY} (rate(rankwatch_collective_bytes_total{{{RANKS}}}[$__rate_interval]))",
                legend="{{group}} {{operation}}",
            ),
        ),
    ),
    Panel(
        title="Collectives behind",
        description="Collectives that a rank has completed fewer than the first of its group, the largest "
        "20. A gap that stays is a hang; start with the rank that has the gap.",
        unit="short",
        empty_when_healthy=True,
        queries=(
            Query(
                expression=most(
                    f"max by ({_PLACE}) (rankwatch_collective_last_completed{{{RUN}}}) "
                    f"- on ({_PLACE}) group_right () "
                    f"rankwatch_collective_last_completed{{{RANKS}}}"
                ),
                legend="rank {{rank}} on {{node}} {{group}} of {{members}}",
            ),
        ),
    ),
    Panel(
        title="Wait share per rank",
        description="Share of the step that a rank waits in collectives for others of its node; the lowest "
        "20. The low line is the rank that the others wait for.",
        unit="percentunit",
        queries=(
            Query(
                expression=f"bottomk({MOST_SERIES}, sum by (rank, node) "
                f"(rate(rankwatch_collective_wait_seconds_total{{{RANKS}}}[$__rate_interval])) "
                f"/ sum by (rank, node) (rate(rankwatch_step_seconds_total{{{RANKS}}}[$__rate_interval])))",
                legend="rank {{rank}} on {{node}}",
            ),
        ),
    ),
    Panel(
        title="Transfer time per collective",
        description="Time of the last arriver, the least over the nodes: waiting is left out. A rise with "
        "local time unchanged is the network: RankwatchRunSlow (network).",
        unit="s",
        queries=(
            Query(
                expression=most(f"group:rankwatch_collective_transfer_seconds:mean{{{RUN}}}"),
                legend="{{group}} of {{members}} {{operation}} {{size_class}}",
            ),
        ),
    ),
    Panel(
        title="Bus bandwidth",
        description="Bytes on the bus per second of transfer, by the formulas of nccl-tests. Compare it with "
        "what nccl-tests reach on the same nodes; small collectives are bound by latency.",
        unit="Bps",
        queries=(
            Query(
                expression=most(f"group:rankwatch_collective_bus_bandwidth:max{{{RUN}}}"),
                legend="{{group}} of {{members}} {{operation}} {{size_class}}",
            ),
        ),
    ),
)
