"""The board of what a run learns: is the loss sound, and do all ranks agree?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import LEARNING_UID, ON_CALL_UID, RUN_DEBUG_UID, RuleConfig
from rankwatch_dashboards.board import FirstScreen, Row, Rows, board, variables_of_run
from rankwatch_dashboards.learning.figures import (
    GRADIENT_NORM,
    LOSS,
    LOSS_SCALE,
    LOSS_SPIKES,
    NON_FINITE_VALUES,
    NORM_RATIO,
    REPLICAS,
    improvement,
    loss_deviation,
    loss_level,
)
from rankwatch_dashboards.links import TO_NODE, TO_RANK, opens
from rankwatch_dashboards.panels import (
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

_ON_CALL = opens(ON_CALL_UID, "What is wrong now")
_DEBUG = opens(RUN_DEBUG_UID, "Debug this run")
_NO_LOSS = "the run records no loss, or has not yet the steps for a trend."
_NOT_RECORDED = "the run records no such value."

ROWS: Rows = (
    Row(
        "Is the loss sound?", lambda config: (LOSS_SPIKES, improvement(config), loss_level(config)), _NO_LOSS
    ),
    Row("Are the numbers sound?", lambda _: (NON_FINITE_VALUES, NORM_RATIO, LOSS_SCALE), _NOT_RECORDED),
    Row("Do replicas agree?", lambda _: REPLICAS, "the run has no replicas, or does not compare them."),
)


def learning(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the board."""
    return board(
        "Rankwatch / Learning",
        LEARNING_UID,
        "One training run: loss, norms, values that are not finite, and whether replicas agree.",
        variables=variables_of_run(),
        events=RUN,
        screen=FirstScreen(
            verdicts=_verdicts(config),
            main=_ranks(config),
            views=(LOSS, loss_deviation(config), GRADIENT_NORM),
        ),
        rows=ROWS,
        config=config,
    )


def _verdicts(config: RuleConfig) -> tuple[Panel, ...]:
    known = f"rankwatch_loss_trend{{{RUN}}}"
    return (
        verdict(
            "Loss",
            "Trend of the median rank. It hides no NaN: those are counted beside it.",
            f"max(run:rankwatch_loss_trend:median{{{RUN}}})",
            no_data=_NO_LOSS,
            links=(_DEBUG,),
        ),
        verdict(
            "Loss above its trend",
            "Robust standard deviations (sigma) of the median rank. Red for minutes: RankwatchLossDiverging.",
            f"quantile(0.5, rankwatch_loss_deviation{{{RUN}}})",
            unit=f"suffix:of {config.loss_deviation:g} sigma",
            steps=((config.loss_deviation / 2, YELLOW), (config.loss_deviation, RED)),
            no_data=_NO_LOSS,
            links=(_ON_CALL,),
        ),
        verdict(
            "First NaN or infinity",
            "Ranks with a scalar that is not finite; the table has the step. RankwatchLossDiverging "
            "(non_finite) pages if it is the loss.",
            f"count(rank:rankwatch_scalar_first_nonfinite_step:first{{{RUN}}}) or 0 * count({known})",
            steps=((1, RED),),
            mappings=NONE,
            no_data=_NOT_RECORDED,
            links=(_ON_CALL,),
        ),
        verdict(
            "Norm, of its trend",
            "Smoothed norm of gradient or update as a multiple of its own trend, of the highest rank. Above "
            "2 and far above the noise: RankwatchLossDiverging (norm).",
            f"max(rankwatch_norm_ratio{{{RUN}}})",
            unit="suffix:of 2 x",
            steps=((2, ORANGE),),
            no_data=_NOT_RECORDED,
            links=(_ON_CALL,),
        ),
        verdict(
            "Replicas that differ",
            "Ranks whose parameters or gradients are not those of their replicas: RankwatchReplicasDisagree. "
            "Silent corruption: stop, and go back to a step of equal replicas.",
            f"count(rank:rankwatch_replica_differs:step{{{RUN}}}) "
            f"or 0 * count(rankwatch_rank_fingerprint{{{RUN}}})",
            steps=((1, RED),),
            mappings=NONE,
            no_data="the run has no replicas, or does not compare them.",
            links=(_ON_CALL,),
        ),
        verdict(
            "Ranks with other data",
            "Ranks whose loss is far from the median rank's for long: RankwatchLossDiverging (data_skew).",
            f"count(rank:rankwatch_data_skew:ratio{{{RUN}}}) or 0 * count(rankwatch_loss_trend{{{RUN}}})",
            steps=((1, ORANGE),),
            mappings=NONE,
            no_data=_NO_LOSS,
            links=(_ON_CALL,),
        ),
    )


def _ranks(config: RuleConfig) -> Panel:
    def by_rank(expression: str) -> Query:
        return Query(
            expression=most(f"max by (run, rank, node) ({expression})"), legend="rank {{rank}} on {{node}}"
        )

    return Panel(
        title="Ranks",
        description="Ranks that differ from their peers: the step of the first value that is not finite, the "
        "step at which a replica differed, and the loss as a multiple of the median rank's. One rank alone "
        "is data or hardware of that rank; all of them are the model.",
        no_data=_NO_LOSS,
        unit="short",
        drawing=Drawing.TABLE,
        sorted_by=("-C",),
        queries=(
            by_rank(f"rank:rankwatch_scalar_first_nonfinite_step:first{{{RANKS}}}"),
            by_rank(f"rank:rankwatch_replica_differs:step{{{RANKS}}}"),
            by_rank(f"rank:rankwatch_loss_level:relative{{{RANKS}}}"),
            by_rank(f"rankwatch_loss_deviation{{{RANKS}}}"),
            by_rank(f'rankwatch_scalar{{{RANKS}, name="gradient_norm"}}'),
        ),
        columns=(
            Column(name="rank", title="Rank", width=80, link=TO_RANK),
            Column(name="node", title="Node", link=TO_NODE),
            Column(name="A", title="Not finite since step", steps=((0, RED),)),
            Column(name="B", title="Replica differs at step", steps=((0, RED),)),
            Column(
                name="C",
                title="Loss, of the median rank's",
                unit="percentunit",
                steps=((1 + config.data_skew, ORANGE),),
            ),
            Column(
                name="D", title="Loss above trend", unit="suffix:sigma", steps=((config.loss_deviation, RED),)
            ),
            Column(name="E", title="Gradient norm"),
        ),
    )
