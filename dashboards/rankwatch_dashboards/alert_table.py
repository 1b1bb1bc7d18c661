"""The table of what fires: of which run, rank and node, why, for how long, and what it costs."""

from __future__ import annotations

from collections.abc import Collection

from rankwatch_alerts import ALERT_NAMES, HARDWARE_ALERTS, Alert, RuleConfig, alert_rules
from rankwatch_dashboards.firing import named, of_runs, suspects
from rankwatch_dashboards.panels import (
    CLUSTER,
    GREEN,
    SEVERITIES,
    TO_GPU,
    TO_NODE,
    TO_RANK,
    TO_RUN,
    Column,
    Drawing,
    Panel,
    Query,
    to_runbook,
)
from rankwatch_dashboards.words import ALERTS, REASONS, SUSPICIONS, Words

_LABELS = ("alertname", "severity", "reason", "run", "rank", "node", "gpu", "device")
"""Labels that tell alerts apart in the table."""
_BY = ", ".join(("cluster", *_LABELS))
_MOST_ROWS, _MOST_QUIET_RUNS = 500, 20
_UNPRODUCTIVE = f'{CLUSTER}, state!="productive", state!="communication"'
_QUIET = "without alert"
"""The severity of runs without one: in the order of letters it comes after those of pages and tickets."""
READS = (
    "Reads the series ALERTS, which Prometheus, the rulers of Mimir and Thanos, and vmalert write; and "
    "GRAFANA_ALERTS, if Grafana writes the state history of its own alerts to this data source."
)


def _lost() -> str:
    """Return a query for the ranks of each run that make no progress."""
    return f"sum by (cluster, run) (run_state:rankwatch_goodput_ranks:mean{{{_UNPRODUCTIVE}}})"


def _cost() -> str:
    lost = f"run_state:rankwatch_cost_per_hour:sum{{{_UNPRODUCTIVE}}}"
    return f"sum by (cluster, run, currency) ({lost})"


def _quiet_runs() -> str:
    """Return the running runs without an alert that lose most."""
    running = f"run:rankwatch_ranks_running:sum{{{CLUSTER}}} > 0"
    quiet = f"{_lost()} and on (cluster, run) {running} unless on (cluster, run) {of_runs()}"
    return f'label_replace(topk({_MOST_QUIET_RUNS}, {quiet}) ^ 0, "severity", "{_QUIET}", "", "")'


def _blame(rows: str) -> str:
    """Return the rows with what to do first, and with the suspect of their run."""
    asked = f'label_join({rows}, "act", " ", {_ACT_LABELS})'
    suspect = f'label_join({suspects(CLUSTER)}, "suspect", " on ", "rank", "node")'
    return (
        f"{asked} * on (cluster, run) group_left (cause, suspect) topk by (cluster, run) (1, {suspect}) "
        f"or ignoring (cause, suspect) {asked}"
    )


def _index(rows: str) -> str:
    """Return each alert on a GPU with the index that people know it by."""
    index = f"group by (cluster, node, gpu, index) (rankwatch_gpu_info{{{CLUSTER}}})"
    return f"{rows} * on (cluster, node, gpu) group_left (index) {index}"


def firing_alerts(
    config: RuleConfig,
    title: str,
    matchers: str,
    *,
    no_data: str,
    of_hardware: bool = False,
) -> Panel:
    """List alerts, one in each row: of which run, rank and node, why, what to do, and what it costs.

    Below them the runs without an alert, except `of_hardware`, whose alerts name the part.
    """
    alerts = HARDWARE_ALERTS if of_hardware else tuple(Alert)
    if of_hardware:
        matchers = f"{matchers}, {named(alerts)}"
    rows = f"group by ({_BY}) ({of_runs(matchers)})"
    age = f"time() - min by ({_BY}) ({of_runs(matchers, since=True)})"
    rows = rows if of_hardware else f"({rows} or {_quiet_runs()})"
    of_run = f"{rows} * on (cluster, run) group_left"
    expressions = (
        f'label_join({rows}, "act", " ", {_ACT_LABELS})' if of_hardware else _blame(rows),
        f"{of_run} () {_lost()}",
        f"{of_run} (currency) {_cost()}",
        age,
        *((_index(rows),) if of_hardware else (f"{of_run} () ({each})" for each in (_GOODPUT, _DONE))),
    )
    opens = " The alert opens its runbook." if to_runbook(config) else ""
    return Panel(
        title=title,
        description=f"{_OF_HARDWARE if of_hardware else _OF_ALL} {READS}{opens}",
        no_data=no_data,
        unit="short",
        drawing=Drawing.TABLE,
        empty_when_healthy=True,
        empty_text="No alert series." if of_hardware else "No alert series, and no run.",
        sorted_by=("severity", "-B", "-D"),
        queries=tuple(
            Query(expression=f"topk({_MOST_ROWS}, {each})", legend="{{alertname}}") for each in expressions
        ),
        columns=_columns(config, alerts, of_hardware=of_hardware),
    )


_GOODPUT = f"min by (cluster, run) (run:rankwatch_goodput_ettr:ratio{{{CLUSTER}}})"
_DONE = (
    f"max by (cluster, run) (rankwatch_node_step{{{CLUSTER}}}) "
    f"/ max by (cluster, run) (rankwatch_node_target_steps{{{CLUSTER}}})"
)
_OF_HARDWARE = (
    "Alerts on parts of nodes, pages first, then by what the run that uses the part loses: ranks without "
    "progress, and their cost in an hour."
)
_OF_ALL = (
    "Alerts that fire, pages first, each kind by what its run loses: ranks without progress, on the mean of "
    "the last hour, and their cost in an hour. Then the runs without an alert. Causes and what follows from "
    "them stand together; suspect and cause are those of the run. Goodput is of the last hour: 100 % if all "
    "requested ranks made progress that lasts. Done: 100 % at its last step."
)


def _columns(config: RuleConfig, alerts: Collection[Alert], *, of_hardware: bool) -> tuple[Column, ...]:
    severities = (*SEVERITIES, (_QUIET, "✓ no alert", GREEN))
    of_part = (
        Column(name="index", title="GPU", width=45, link=TO_GPU),
        Column(name="device", title="Device", width=90),
    )
    of_run = (
        Column(name="suspect", title="Suspect", width=95, link=TO_RUN),
        Column(name="cause", title="Cause", width=155, words=SUSPICIONS),
    )
    progress = (
        Column(name="F", title="Done", unit="percentunit", width=52, decimals=0),
        Column(name="E", title="Goodput", unit="percentunit", width=75),
    )
    return (
        Column(name="severity", title="Severity", width=80, mappings=severities),
        Column(
            name="alertname",
            title="Alert",
            width=118,
            words={str(each): ALERTS[each] for each in alerts},
            link=to_runbook(config),
        ),
        Column(name="reason", title="Why", width=128, words=REASONS),
        Column(name="D", title="Fires for", unit="s", width=72),
        Column(name="run", title="Run", width=98, link=TO_RUN),
        Column(name="rank", title="Rank", width=48, link=TO_RANK),
        Column(name="node", title="Node", width=66, link=TO_NODE),
        *(of_part if of_hardware else of_run),
        Column(name="act", title="Do first", patterns=first_acts(config, alerts)),
        *(() if of_hardware else progress),
        Column(name="B", title="Ranks lost", width=88, decimals=2),
        Column(name="C", title="Waste/h", width=70, decimals=2),
        Column(name="currency", title="In", width=45),
    )


_ACT_LABELS = '"alertname", "reason"'
"""Joined by a space, they are what the patterns match."""


def first_acts(config: RuleConfig, alerts: Collection[str] = ALERT_NAMES) -> Words:
    """Return what to do first by patterns of alert and reason, those with a reason first.

    Each matches all of its text, because Grafana replaces only what matches.
    """
    found: dict[str, str] = {}
    rules = alert_rules(config)
    for alert in alerts:
        acts = {
            reason: act for rule in rules if rule.alert == alert for reason, act in rule.first_acts.items()
        }
        same = len(set(acts.values())) == 1
        for reason, act in sorted(acts.items(), key=lambda each: (each[0] == "", each[0])):
            found.setdefault(f"/^{alert} {'' if same else reason}", act)
    patterns = {f"{start}{'.*' if start.endswith(' ') else ''}$/": act for start, act in found.items()}
    return {**patterns, "/^Rankwatch.*$/": "See its runbook"}
