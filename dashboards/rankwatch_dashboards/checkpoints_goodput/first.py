"""The first screen of what a run could lose, and of what its time and money go to."""

from __future__ import annotations

from rankwatch_alerts import ON_CALL_UID, RUN_DEBUG_UID, RuleConfig
from rankwatch_alerts.objectives import DEFAULT_CLASS
from rankwatch_dashboards.board import FirstScreen
from rankwatch_dashboards.links import TO_NODE, TO_RANK, opens
from rankwatch_dashboards.lost_time import NO_TIME, lost_time, unproductive
from rankwatch_dashboards.panels import (
    GREEN,
    NONE,
    ORANGE,
    RANKS,
    RED,
    RUN,
    YELLOW,
    Column,
    Drawing,
    Panel,
    Query,
    most,
    verdict,
)
from rankwatch_dashboards.words import STATES, in_words

_ON_CALL = opens(ON_CALL_UID, "What is wrong now")
_DEBUG = opens(RUN_DEBUG_UID, "Debug this run")
_NO_CHECKPOINT = "the hooks have seen no checkpoint of this run."
_RATE = "[$__rate_interval]"


def first_screen(config: RuleConfig) -> FirstScreen:
    """Verdicts, the ranks that save, the time of stages, the lost time, and the money by state."""
    return FirstScreen(
        verdicts=_verdicts(config), main=_RANKS_THAT_SAVE, views=(_STAGES, lost_time(config, _DEBUG), _MONEY)
    )


def _verdicts(config: RuleConfig) -> tuple[Panel, ...]:
    age = f"(time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max{{{RUN}}})"
    objective = config.goodput_objectives[DEFAULT_CLASS]
    return (
        verdict(
            "Age, of what is allowed",
            "Age of the last good checkpoint as a share of what the run may lose. At 100 %: "
            "RankwatchCheckpointAtRisk (stale).",
            f"max({age} / on (cluster, run) run:rankwatch_checkpoint_age_budget_seconds:max{{{RUN}}})",
            unit="percentunit",
            steps=((0.8, YELLOW), (1, RED)),
            no_data=_NO_CHECKPOINT,
            links=(_ON_CALL,),
        ),
        verdict(
            "Rank-hours at risk",
            "What a crash now loses: training of all ranks since the last good checkpoint.",
            f"sum(run:rankwatch_work_at_risk_seconds:sum{{{RUN}}}) / 3600",
            no_data="no rank of the run has trained yet.",
            links=(_DEBUG,),
        ),
        verdict(
            "Failed, last 15 min",
            "Saves, restores and verifications that failed. RankwatchCheckpointAtRisk (failed) names rank "
            "and node.",
            f'round(sum(increase(rankwatch_checkpoint_operations_total{{{RUN}, outcome="failure"}}[15m])))',
            steps=((1, RED),),
            mappings=NONE,
            no_data=_NO_CHECKPOINT,
            links=(_ON_CALL,),
        ),
        verdict(
            "Blocked by a save",
            "Mean time for which a save keeps the run from training. Long: save in the background or less "
            "often; the row on the interval has the advice.",
            f"max(run:rankwatch_checkpoint_blocking_seconds:mean{{{RUN}}})",
            unit="s",
            no_data=_NO_CHECKPOINT,
            links=(_DEBUG,),
        ),
        verdict(
            "Goodput, last hour",
            "Share of the requested time that made progress that lasts. Red: below the objective of classes "
            "that name none.",
            f"min(run:rankwatch_goodput_ettr:ratio{{{RUN}}})",
            unit="percentunit",
            steps=((-1e9, RED), (objective, GREEN)),
            no_data=NO_TIME,
            links=(_DEBUG,),
        ),
        verdict(
            "Waste per hour",
            "The part of the cost of an hour that buys no progress, by currency.",
            f"sum by (currency) (run_state:rankwatch_cost_per_hour:sum{{{unproductive(RUN)}}})",
            steps=((0.01, ORANGE),),
            decimals=2,
            beside="{{currency}}",
            no_data="no price is set: see docs/cost.md.",
            links=(_DEBUG,),
        ),
    )


def _by_rank(expression: str) -> Query:
    return Query(
        expression=most(f"max by (run, rank, node) ({expression})"), legend="rank {{rank}} on {{node}}"
    )


_RANKS_THAT_SAVE = Panel(
    title="Ranks that save",
    description="Newest steps, size and time of each rank's saves, the slowest first, and failures of the "
    "last 15 minutes. One slow or failing rank is its disk or its path: RankwatchCheckpointSlow "
    "(one_writer).",
    no_data=_NO_CHECKPOINT,
    unit="short",
    drawing=Drawing.TABLE,
    sorted_by=("-A",),
    queries=(
        _by_rank(f"rankwatch_checkpoint_last_write_seconds{{{RANKS}}}"),
        _by_rank(f'increase(rankwatch_checkpoint_operations_total{{{RANKS}, outcome="failure"}}[15m])'),
        _by_rank(f"rankwatch_checkpoint_last_saved_step{{{RANKS}}}"),
        _by_rank(f"rankwatch_checkpoint_last_verified_step{{{RANKS}}}"),
        _by_rank(f"rankwatch_checkpoint_bytes{{{RANKS}}}"),
        _by_rank(f"rankwatch_checkpoint_saves_pending{{{RANKS}}}"),
    ),
    columns=(
        Column(name="rank", title="Rank", width=80, link=TO_RANK),
        Column(name="node", title="Node", link=TO_NODE),
        Column(name="A", title="Last write", unit="s"),
        Column(name="B", title="Failures", steps=((0.5, RED),)),
        Column(name="C", title="Saved step"),
        Column(name="D", title="Verified step"),
        Column(name="E", title="Size", unit="bytes"),
        Column(name="F", title="Under way", steps=((2, ORANGE),)),
    ),
)

_STAGES = Panel(
    title="Where checkpoint time goes",
    description="Seconds per second by operation and stage, of the rank with the most. The largest stage is "
    "worth mending first: write is the disk, serialise the CPU.",
    no_data=_NO_CHECKPOINT,
    unit="percentunit",
    drawing=Drawing.BARS,
    least=0,
    queries=(
        Query(
            expression="sort_desc(max by (operation, checkpoint_stage) "
            f"(rate(rankwatch_checkpoint_stage_seconds_total{{{RUN}}}{_RATE})))",
            legend="{{operation}} {{checkpoint_stage}}",
        ),
    ),
    links=(_DEBUG,),
)


_PER_HOUR = f"sum by (state, currency) (run_state:rankwatch_cost_per_hour:sum{{{RUN}}})"
_MONEY = Panel(
    title="What the money went to",
    description="Cost of an hour by what it buys. Everything but productive and communication is waste; the "
    "budget and its forecast stand in the last row.",
    no_data="no price is set: see docs/cost.md.",
    unit="short",
    drawing=Drawing.BARS,
    least=0,
    queries=(
        Query(
            expression=f"sort_desc({in_words(_PER_HOUR, 'state', STATES)} > 0.001)",
            legend="{{state}} {{currency}}",
        ),
    ),
    links=(_DEBUG,),
)
