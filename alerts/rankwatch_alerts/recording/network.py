"""Network: transfers that take longer than they did, while the ranks' own work does not.

The time of a collective is the wait for others up to its last arriver; the last arriver's own time is
the transfer. The agents count that of the last arriver on their node, so the least over the nodes
belongs to the last of all.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import RecordingRule

GROUP = "cluster, run, group, members, operation, size_class"


def network_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Transfer time by group, its own past, its growth, and what that costs the run."""
    window = duration(config.step_window_seconds)
    mean = "group:rankwatch_collective_transfer_seconds:mean"
    return (
        RecordingRule(record=mean, expression=_least_over_nodes("seconds", window)),
        RecordingRule(
            record="group:rankwatch_collective_bus_bytes:mean", expression=_mean_of_nodes("bus_bytes", window)
        ),
        RecordingRule(
            record="run:rankwatch_step_local_seconds:median",
            expression="quantile by (cluster, run) (0.5, rank:rankwatch_step_local_seconds:mean)",
        ),
        RecordingRule(
            record="group:rankwatch_collective_transfer_seconds:growth",
            expression=promql(f"""
                {mean}
                / on ({GROUP})
                (
                  {_past(mean, config)}
                  and on ({GROUP})
                  ({_samples(mean, config)})
                  > 0
                )
            """),
        ),
        _degraded_rule(config, mean, window),
    )


def _past(record: str, config: RuleConfig) -> str:
    """The median of a record before the alert's own time began."""
    return (
        f"quantile_over_time(0.5, {record}[{duration(config.network_past_seconds)}]"
        f" offset {duration(config.cause_for_seconds)})"
    )


def _samples(record: str, config: RuleConfig) -> str:
    least = config.network_least_past_seconds / config.scrape_interval_seconds
    past, offset = duration(config.network_past_seconds), duration(config.cause_for_seconds)
    return f"count_over_time({record}[{past}] offset {offset}) >= {least:g}"


def _rate(what: str, window: str) -> str:
    name = {
        "seconds": "rankwatch_collective_transfer_seconds_total",
        "bus_bytes": "rankwatch_collective_bus_bytes_total",
        "transfers": "rankwatch_collective_transfers_total",
    }[what]
    return f"sum by ({GROUP}, node) (rate({name}[{window}]))"


def _least_over_nodes(what: str, window: str) -> str:
    return promql(f"""
        min by ({GROUP}) (
          {_rate(what, window)}
          / on ({GROUP}, node)
          ({_rate("transfers", window)} > 0)
        )
    """)


def _mean_of_nodes(what: str, window: str) -> str:
    return _least_over_nodes(what, window).replace("min by", "avg by", 1)


def _degraded_rule(config: RuleConfig, mean: str, window: str) -> RecordingRule:
    """Share of time that the growth costs, where it is neither the ranks' work nor larger messages."""
    of_run = "on (cluster, run)"
    local, size = "run:rankwatch_step_local_seconds:median", "group:rankwatch_collective_bus_bytes:mean"
    return RecordingRule(
        record="group:rankwatch_network_degraded:share",
        expression=promql(f"""
            (
              ({mean} - on ({GROUP}) {mean} / on ({GROUP}) group:rankwatch_collective_transfer_seconds:growth)
              * on ({GROUP})
              max by ({GROUP}) ({_rate("transfers", window)})
            )
            > {config.cause_cost:g}
            and on ({GROUP})
            (group:rankwatch_collective_transfer_seconds:growth > {config.network_growth:g})
            unless on ({GROUP})
            ({size} > on ({GROUP}) ({1 + config.straggler_residual:g} * {_past(size, config)}))
            unless {of_run}
            ({local} > {of_run} ({1 + config.straggler_residual:g} * {_past(local, config)}))
            unless {of_run}
            run:rankwatch_jitter:share
            unless {of_run}
            run:rankwatch_unequal_batches:share
        """),
    )
