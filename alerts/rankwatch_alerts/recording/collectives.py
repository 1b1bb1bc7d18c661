"""Collectives: who waits for whom, how fast the groups transfer, and whether the network has become slow.

Durations of collectives are inverted evidence: the rank that all wait for spends the least time in them. The
agents separate waiting from transfer among the ranks of a node, and the rules compare nodes: the time of a
collective's last arriver is its transfer, so the least over the nodes belongs to the last of all.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.causes import JITTER
from rankwatch_alerts.recording.steps import MEDIAN, estimate
from rankwatch_alerts.recording.unequal_batches import UNEQUAL_BATCHES
from rankwatch_alerts.rules import COLLECTIVE, RecordingRule, duration, promql, recorded

NETWORK_DEGRADED = "group:rankwatch_network_degraded:share"


def network_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Transfer time and bandwidth by group, the growth over its own baseline, and what that costs the run."""
    window = duration(config.step_window_seconds)
    mean, size = (
        "group:rankwatch_collective_transfer_seconds:mean",
        "group:rankwatch_collective_bus_bytes:mean",
    )
    return (
        recorded(mean, _least_over_nodes(window)),
        recorded(size, _mean_size(window)),
        recorded(
            "group:rankwatch_collective_bus_bandwidth:max",
            f"{size} / on ({COLLECTIVE}) ({mean} > 0)",
        ),
        recorded(
            "run:rankwatch_step_local_seconds:median",
            f"quantile by (cluster, run) (0.5, {MEDIAN})",
        ),
        recorded(
            "group:rankwatch_collective_transfer_seconds:growth",
            f"""
                {mean}
                / on ({COLLECTIVE})
                (
                  {_baseline(mean, config)}
                  and on ({COLLECTIVE})
                  {_known_long(mean, config)}
                  > 0
                )
            """,
        ),
        _degraded_rule(config, mean, window),
    )


def _baseline(record: str, config: RuleConfig) -> str:
    """The median of a record, up to the moment from which the alert judges."""
    return (
        f"quantile_over_time(0.5, {record}[{duration(config.network_baseline_seconds)}]"
        f" offset {duration(config.cause_for_seconds)})"
    )


def _known_long(record: str, config: RuleConfig) -> str:
    """Records that the baseline knows from long before its end: a younger run has no past."""
    least = config.network_min_baseline_seconds
    first, offset = (
        duration(config.network_baseline_seconds - least),
        duration(config.cause_for_seconds + least),
    )
    return f"present_over_time({record}[{first}] offset {offset})"


def _transfers(window: str) -> str:
    return f"sum by ({COLLECTIVE}, node) (rate(rankwatch_collective_transfers_total[{window}]))"


def _least_over_nodes(window: str) -> str:
    return promql(f"""
        min by ({COLLECTIVE}) (
          sum by ({COLLECTIVE}, node) (rate(rankwatch_collective_transfer_seconds_total[{window}]))
          / on ({COLLECTIVE}, node)
          ({_transfers(window)} > 0)
        )
    """)


def _mean_size(window: str) -> str:
    return promql(f"""
        sum by ({COLLECTIVE}) (rate(rankwatch_collective_bus_bytes_total[{window}]))
        / on ({COLLECTIVE})
        (sum by ({COLLECTIVE}) (rate(rankwatch_collective_transfers_total[{window}])) > 0)
    """)


def _degraded_rule(config: RuleConfig, mean: str, window: str) -> RecordingRule:
    """Share of time that the growth costs, unless local work or the size of messages grew as well."""
    of_run = "on (cluster, run)"
    growth = "group:rankwatch_collective_transfer_seconds:growth"
    local, size = "run:rankwatch_step_local_seconds:median", "group:rankwatch_collective_bus_bytes:mean"
    return recorded(
        estimate(NETWORK_DEGRADED),
        f"""
            (
              ({mean} - on ({COLLECTIVE}) {mean} / on ({COLLECTIVE}) {growth})
              * on ({COLLECTIVE})
              max by ({COLLECTIVE}) ({_transfers(window)})
            )
            > {config.cause_cost:g}
            and on ({COLLECTIVE})
            ({growth} > {config.network_growth:g})
            unless on ({COLLECTIVE})
            ({size} > on ({COLLECTIVE}) ({1 + config.straggler_residual:g} * {_baseline(size, config)}))
            unless {of_run}
            ({local} > {of_run} ({1 + config.straggler_residual:g} * {_baseline(local, config)}))
            unless {of_run}
            {estimate(JITTER)}
            unless {of_run}
            {estimate(UNEQUAL_BATCHES)}
        """,
    )
