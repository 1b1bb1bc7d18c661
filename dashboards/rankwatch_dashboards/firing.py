"""What fires now: how many alerts, since when, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch.conventions.goodput import GoodputState
from rankwatch_alerts import Alert, RuleConfig
from rankwatch_dashboards.links import TO_NODE, TO_RANK, TO_RUN, to_runbook
from rankwatch_dashboards.panels import CLUSTER, SEVERITIES, Column, Drawing, Panel, Query, most

_FIRING = 'alertname=~"Rankwatch.+", alertname!="RankwatchWatchdog", alertstate="firing"'
LABELS = ("alertname", "severity", "run", "rank", "node", "gpu", "reason")
"""What tells alerts apart in the table."""
STOPPED = (
    *(Alert.RUN_STALLED, Alert.COLLECTIVES_DESYNCHRONISED, Alert.RUN_FAILED, Alert.RUN_CRASH_LOOPING),
    *(Alert.RANK_LOST, Alert.NODE_LOST),
)
"""A run with one of these makes no progress."""
SILENCES = (
    *(Alert.TELEMETRY_ABSENT, Alert.COLLECTOR_FAILING, Alert.RULES_FAILING),
    *(Alert.BLACK_BOXES_LEFT_OUT, Alert.RECORDS_MISSED),
)
"""What other panels show may be old or incomplete."""


def firing(matchers: str = CLUSTER) -> str:
    """The firing alerts with these labels."""
    return f"ALERTS{{{_FIRING}, {matchers}}}"


def named(alerts: Iterable[Alert]) -> str:
    """The matcher of these alerts."""
    return f'alertname=~"{"|".join(alerts)}"'


def count_of(series: str, known: str = f"rankwatch_agent_info{{{CLUSTER}}}") -> str:
    """How many; 0 only while telemetry of `known` arrives, so that silence is not read as health."""
    return f"count({series}) or 0 * count({known})"


def milliseconds_since(matchers: str, labels: Iterable[str]) -> str:
    """Since when alerts have these labels, in the unit of Grafana's dates."""
    since = f"ALERTS_FOR_STATE{{{matchers}}} and ignoring (alertstate) {firing(matchers)}"
    return f"1000 * min by ({', '.join(('cluster', *labels))}) ({since})"


def firing_alerts(config: RuleConfig, title: str, matchers: str, *, no_data: str) -> Panel:
    """One row for each alert: since when, of which run, rank and node, and what its run loses."""
    wanted = f'{matchers}, severity=~"critical|warning"'
    labels = ", ".join(("cluster", *LABELS))
    lost = f'{CLUSTER}, state!="{GoodputState.PRODUCTIVE}", state!="{GoodputState.COMMUNICATION}"'
    return Panel(
        title=title,
        description="Alerts that fire now, pages first. The name opens the runbook; run, rank and node open "
        "their boards. Lost is how many ranks of the run made no progress, on average over the last hour: "
        "rank-hours lost in each hour.",
        no_data=no_data,
        unit="short",
        drawing=Drawing.TABLE,
        empty_when_healthy=True,
        empty_text="Nothing fires.",
        sorted_by="severity",
        queries=(
            Query(expression=most(milliseconds_since(wanted, LABELS), 50), legend="{{alertname}}"),
            Query(
                expression=most(
                    f"group by ({labels}) ({firing(wanted)}) * on (cluster, run) group_left () "
                    f"sum by (cluster, run) (run_state:rankwatch_goodput_ranks:mean{{{lost}}})",
                    500,
                ),
                legend="{{alertname}}",
            ),
        ),
        columns=(
            Column(name="severity", title="Severity", width=80, mappings=SEVERITIES),
            Column(name="alertname", title="Alert", width=260, link=to_runbook(config)),
            Column(name="A", title="Since", unit="dateTimeFromNow", width=150),
            Column(name="run", title="Run", link=TO_RUN),
            Column(name="rank", title="Rank", width=80, link=TO_RANK),
            Column(name="node", title="Node", link=TO_NODE),
            Column(name="gpu", title="GPU", width=160),
            Column(name="reason", title="Reason"),
            Column(name="B", title="Lost", width=80),
        ),
    )
