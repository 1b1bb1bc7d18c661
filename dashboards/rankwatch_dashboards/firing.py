"""Alerts as series: which ones fire, for how long, and which run, rank and node suffer."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch_alerts import HARDWARE_ALERTS, Alert
from rankwatch_dashboards.panels import CLUSTER

_FIRING = 'alertname=~"Rankwatch.+", severity!="info", alertstate="firing"'
RANK_OF_GPU = "gpu:rankwatch_rank_start_timestamp_seconds:latest"
_RUN_OF_NODE = "node:rankwatch_rank_start_timestamp_seconds:latest"


def selected(matchers: str) -> str:
    """The selector. Rulers write ALERTS; Grafana, if it is set to, writes its state history beside it."""
    return f'{{__name__=~"ALERTS|GRAFANA_ALERTS", {_FIRING}, {matchers}}}'


def firing(matchers: str = CLUSTER, *, since: bool = False) -> str:
    """The firing alerts with these labels; with `since`, when each began to hold: Grafana does not say."""
    return _alike(_firing(matchers, since=since))


def of_runs(matchers: str = CLUSTER, *, since: bool = False) -> str:
    """Firing alerts, those on hardware with the run and the rank that use the GPU or the node."""
    hardware = _firing(f"{matchers}, {named(HARDWARE_ALERTS)}", since=since)
    rank = f"({RANK_OF_GPU}{{{CLUSTER}}} > bool 0)"
    found = (
        f"({hardware}) * on (cluster, node, gpu) group_left (run, rank) {rank}",
        f"({hardware}) * on (cluster, node) group_left (run) ({_RUN_OF_NODE}{{{CLUSTER}}} > bool 0)",
        _firing(matchers, since=since),
    )
    return _alike(" or ignoring (run, rank) ".join(found))


def _firing(matchers: str, *, since: bool) -> str:
    if since:
        return f"ALERTS_FOR_STATE{{{matchers}}} and ignoring (alertstate) ALERTS{{{_FIRING}, {matchers}}}"
    return selected(matchers)


def _alike(alerts: str) -> str:
    """Titles of Grafana's rules become names of alerts, and a cause becomes the reason."""
    alike = f'label_replace({alerts}, "alertname", "$1", "alertname", "(Rankwatch[A-Za-z]+).*")'
    return f'label_join({alike}, "reason", "", "reason", "cause")'


def named(alerts: Iterable[Alert]) -> str:
    """The matcher of these alerts, also where titles of Grafana's rules say more after the name."""
    names = "|".join(each.removeprefix("Rankwatch") for each in alerts)
    return f'alertname=~"Rankwatch({names})( .+)?"'


def count_of(series: str) -> str:
    """How many; 0 only while telemetry of agents arrives, so that silence is not read as health."""
    return f"count({series}) or 0 * count(rankwatch_agent_info{{{CLUSTER}}})"


def age_of(matchers: str, labels: Iterable[str]) -> str:
    """For how many seconds alerts with these labels hold, the oldest of them."""
    return f"time() - min by ({', '.join(('cluster', *labels))}) ({firing(matchers, since=True)})"
