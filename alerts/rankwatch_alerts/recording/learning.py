"""Runs whose loss has left its trend or whose loss scale has collapsed, and ranks that had NaN first."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RecordingRule, recorded

DIVERGING = "run:rankwatch_loss_diverging:deviation"
COLLAPSED = "run:rankwatch_loss_scale_collapsed:count"
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
    )
