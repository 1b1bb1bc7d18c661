"""Runs whose loss has left its trend or whose loss scale has collapsed, and ranks that had NaN first."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.steps import EVERY_RANK, recent
from rankwatch_alerts.rules import RUN, STAGE, RecordingRule, recorded

DIVERGING = "run:rankwatch_loss_diverging:deviation"
COLLAPSED = "run:rankwatch_loss_scale_collapsed:count"
TREND = "run:rankwatch_loss_trend:median"
DATA_SKEW = "rank:rankwatch_data_skew:ratio"
_LEVEL = "rank:rankwatch_loss_level:relative"
_ODD_LEVEL = "rank:rankwatch_loss_level:odd"
_ODD_PER_TOKEN = "rank:rankwatch_loss_level:odd_per_token"
_RANK = "cluster, run, rank, node"
FIRST_NON_FINITE = "rank:rankwatch_scalar_first_nonfinite_step:first"


def loss_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """What the alerts on learning are made of.

    The median rank decides on the deviation of the loss, so that one odd shard of data does not. `> -Inf`
    leaves out NaN, which one quantile would spread over all ranks.
    """
    return (
        recorded(
            DIVERGING,
            f"""
                quantile by (cluster, run) (
                  0.5,
                  rankwatch_half_loss_deviation
                  or on (cluster, run)
                  max by (cluster, run, rank) (rankwatch_loss_deviation > -Inf)
                ) > {config.loss_deviation:g}
                and
                run:rankwatch_ranks_running:sum > 0
            """,
        ),
        recorded(
            COLLAPSED,
            """
                count by (cluster, run) (
                  max by (cluster, run, rank) (rankwatch_loss_scale_collapsed) > 0
                )
                and
                run:rankwatch_ranks_running:sum > 0
            """,
        ),
        recorded(
            FIRST_NON_FINITE,
            """
                max by (cluster, run, rank, node, name) (rankwatch_scalar_first_nonfinite_step)
                == on (cluster, run, name) group_left ()
                min by (cluster, run, name) (rankwatch_scalar_first_nonfinite_step)
            """,
        ),
        _skew_rule(config),
    )


def _skew_rule(config: RuleConfig) -> RecordingRule:
    """Ranks whose loss stands elsewhere than that of their peers: their data differ.

    Some loops divide the loss of a rank by the tokens of all ranks, so that a rank with more tokens has a
    larger loss although it learns the same; others divide by its own. A rank counts only if both readings say
    so, and not where its tokens are unknown.
    """
    high, low = 1.0 + config.data_skew, 1.0 - config.data_skew
    return recorded(
        DATA_SKEW,
        f"""
            {_ODD_LEVEL} > {high:g} and on ({_RANK}) {_ODD_PER_TOKEN} > {high:g}
            or
            {_ODD_LEVEL} < {low:g} and on ({_RANK}) {_ODD_PER_TOKEN} < {low:g}
        """,
    )


def level_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Where the loss of each rank stands, and the ranks whose loss stands elsewhere than that of others."""
    high, low = 1.0 + config.data_skew, 1.0 - config.data_skew
    return (
        recorded(
            TREND,
            # In large runs, the halves of the ranks of a node speak for all of them.
            f"""
                quantile by (cluster, run) (
                  0.5,
                  rankwatch_half_loss_trend or (rankwatch_loss_trend{EVERY_RANK} > 0)
                )
            """,
        ),
        recorded(
            _LEVEL,
            f"""
                max by ({_RANK}) (
                  (rankwatch_loss_trend > 0)
                  / on (cluster, run) group_left ()
                  ({TREND} and on (cluster, run) (count by (cluster, run) (rankwatch_loss_trend > 0) > 2))
                )
            """,
        ),
        recorded(
            _ODD_LEVEL,
            f"({_LEVEL} > {high:g} or {_LEVEL} < {low:g}) and on ({RUN}) run:rankwatch_ranks_running:sum > 0",
        ),
        recorded(
            _ODD_PER_TOKEN,
            f"""
                {_ODD_LEVEL}
                / on ({_RANK})
                max by ({_RANK}) (
                  ({recent(config, "step_tokens")} and on ({_RANK}) {_ODD_LEVEL})
                  / on ({STAGE}) group_left ()
                  stage:rankwatch_step_tokens:median
                )
            """,
        ),
    )
