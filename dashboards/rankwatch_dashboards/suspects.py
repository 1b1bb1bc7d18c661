"""Ranks that rules suspect now, each with its cause in words."""

from __future__ import annotations

from rankwatch_alerts import HARDWARE_ALERTS
from rankwatch_dashboards.firing import named


def suspects(matchers: str) -> str:
    """Series with the labels run, rank, node and cause, also before their alert fires."""

    def of(series: str) -> str:
        return f"{series}{{{matchers}}}"

    def because(cause: str, series: str) -> str:
        return f'label_replace({series}, "cause", "{cause}", "", "")'

    of_hardware = named(HARDWARE_ALERTS)
    first = "rank:rankwatch_scalar_first_nonfinite_step:first"
    # A gradient norm is that of all ranks: the loss says whose it was.
    of_loss = f'{first}{{{matchers}, name="loss"}}'
    found = (
        f'label_join({of("rank:rankwatch_stall_root_cause:bool")}, "cause", "", "reason")',
        because("lost", of("rank:rankwatch_rank_lost:waited_seconds")),
        because("slow", of("rank:rankwatch_straggler_costly:slowdown")),
        because("first non-finite value", f"{of_loss} or {of(first)} unless on (cluster, run) {of_loss}"),
        because("replica differs", of("rank:rankwatch_replica_differs:step")),
        because("data differs", of("rank:rankwatch_data_skew:ratio")),
        because(
            "checkpoint file failed",
            f"increase({of('rankwatch_checkpoint_stage_failures_total')}[15m]) > 0",
        ),
        f'label_join(run:rankwatch_run_failed_timestamp_seconds:max{{{matchers}, rank!=""}}, '
        '"cause", " ", "kind", "exception")',
        f'label_join(ALERTS{{alertstate="firing", {of_hardware}, {matchers}, rank!=""}}, '
        '"cause", "", "alertname")',
    )
    return f"group by (cluster, run, rank, node, cause) ({' or '.join(found)})"
