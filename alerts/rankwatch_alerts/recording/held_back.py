"""Alerts that another alert explains, as Alertmanager holds them back: boards show one row for a fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rankwatch_alerts.alertmanager.inhibition import inhibit_rules
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RecordingRule, promql, recorded
from rankwatch_alerts.servers import ALERTS_OF_SHARDS

HELD_BACK = "alert:rankwatch_held_back:bool"
SAME_ALERT = "alertname, severity, cluster, run, rank, node, gpu, reason, device, port, path, collector, xid"
"""Labels by which an alert is known again. Others change while it fires, or are those of a server."""


def held_back_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """One series for each firing alert that is held back, by the rules of the Alertmanager configuration."""
    series = f'{{__name__=~"ALERTS|{ALERTS_OF_SHARDS}", ' if config.prometheus_shards else "ALERTS{"

    def firing(matchers: Iterable[str]) -> str:
        return f'{series}alertstate="firing", {", ".join(matchers)}}}'

    def held_back(rule: Mapping[str, Iterable[str]]) -> str:
        return promql(f"""
            {firing(rule["target_matchers"])}
            and on ({", ".join(rule["equal"])})
            {firing(rule["source_matchers"])}
        """)

    found = "or\n".join(map(held_back, inhibit_rules()))
    return (recorded(HELD_BACK, f"group by ({SAME_ALERT}) (\n{found})\n"),)
