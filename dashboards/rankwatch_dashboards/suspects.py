"""Ranks that rules suspect now, each with its cause in words."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch_alerts import HARDWARE_ALERTS
from rankwatch_dashboards.firing import firing, named


def suspects(matchers: str) -> str:
    """Series with the labels run, rank, node and cause, also before their alert fires."""
    of_hardware = firing(f'{matchers}, rank!="", {named(HARDWARE_ALERTS)}')
    others = firing(f'{matchers}, rank!=""')
    found = (*_recorded(matchers), f'label_join({of_hardware}, "cause", "", "alertname")')
    return (
        f"group by (cluster, run, rank, node, cause) ({' or '.join(found)} "
        f'or on (cluster, run, rank, node) label_join({others}, "cause", "", "alertname"))'
    )


def _recorded(matchers: str) -> Iterable[str]:
    """What rules and agents record of suspected ranks."""

    def of(series: str) -> str:
        return f"{series}{{{matchers}}}"

    def because(cause: str, series: str) -> str:
        return f'label_replace({series}, "cause", "{cause}", "", "")'

    slow = of("rank:rankwatch_straggler_costly:slowdown")
    of_rank = "cluster, run, rank, node"
    grown = f"topk by ({of_rank}) (1, {of('rank_phase:rankwatch_step_local_seconds:excess_share')})"
    first = "rank:rankwatch_scalar_first_nonfinite_step:first"
    # A gradient norm is that of all ranks: the loss says whose it was.
    of_loss = f'{first}{{{matchers}, name="loss"}}'
    yield f'label_join({of("rank:rankwatch_stall_root_cause:bool")}, "cause", "", "reason")'
    yield because("lost", of("rank:rankwatch_rank_lost:waited_seconds"))
    yield (
        f'(label_replace({slow} * on ({of_rank}) group_left (phase) {grown}, "cause", "slow: $1", '
        f'"phase", "(.+)") or ignoring (cause, phase) {because("slow", slow)})'
    )
    yield because("first NaN or infinity", f"{of_loss} or {of(first)} unless on (cluster, run) {of_loss}")
    yield because("replica differs", of("rank:rankwatch_replica_differs:step"))
    yield because("data differs", of("rank:rankwatch_data_skew:ratio"))
    yield (
        f'label_join(run:rankwatch_run_failed_timestamp_seconds:max{{{matchers}, rank!=""}}, '
        '"cause", " ", "kind", "exception")'
    )
