"""Runs whose loss has left its own trend."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RecordingRule, recorded

DIVERGING = "run:rankwatch_loss_diverging:deviation"


def loss_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The deviation of a loss that stands too far above its trend.

    The median rank decides, so that one odd shard of data does not. `> -Inf` leaves out NaN, which one
    quantile would spread over all ranks.
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
    )
