"""The run-debug dashboard, which alerts link to: its rows in the order of triage, variables, annotations."""

from __future__ import annotations

from collections.abc import Callable

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableRefresh,
    VariableSort,
)

from rankwatch_alerts import RUN_DEBUG_UID, RuleConfig
from rankwatch_dashboards.panels import DATASOURCE, Panel, build
from rankwatch_dashboards.run_debug.learning import checkpoints, learning
from rankwatch_dashboards.run_debug.machines import NODES, TELEMETRY
from rankwatch_dashboards.run_debug.progress import PROGRESS, STEP_SPLIT
from rankwatch_dashboards.run_debug.slow import COLLECTIVES, who_is_slow, why_slow

ROWS: tuple[tuple[str, Callable[[RuleConfig], tuple[Panel, ...]]], ...] = (
    ("Is it making progress?", lambda _: PROGRESS),
    ("Where does the step go?", lambda _: STEP_SPLIT),
    ("Who is slow?", who_is_slow),
    ("No rank to blame?", why_slow),
    ("Is it learning?", learning),
    ("Could work be lost?", checkpoints),
    ("Collectives", lambda _: COLLECTIVES),
    ("Nodes of the run", lambda _: NODES),
    ("Can the data be trusted?", lambda _: TELEMETRY),
)


def run_debug(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the whole dashboard, thresholds from the rules' own config."""
    board = (
        dashboard.Dashboard("Rankwatch / Run debug")
        .uid(RUN_DEBUG_UID)
        .description("One training run: progress, step split, stragglers, learning, checkpoints, nodes.")
        .tags(["rankwatch"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(_links())
        .annotation(_alerts())
    )
    for variable in _variables():
        board.with_variable(variable)
    for title, panels in ROWS:
        board.with_row(dashboard.Row(title))
        for panel in panels(config):
            board.with_panel(build(panel))
    return board


def _variables() -> tuple[dashboard.DatasourceVariable | dashboard.QueryVariable, ...]:
    return (
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _chosen("cluster", "Cluster", "label_values(rankwatch_rank_info, cluster)")
        # Agents without the setting `cluster` have no such label, which .+ would not match.
        .include_all(True)
        .all_value(".*"),
        _chosen("run", "Run", 'label_values(rankwatch_rank_info{cluster=~"$cluster"}, run)'),
        _chosen("rank", "Rank", 'label_values(rankwatch_rank_info{cluster=~"$cluster", run=~"$run"}, rank)')
        .multi(True)
        .include_all(True)
        .all_value(".+"),
    )


def _chosen(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NUMERICAL_ASC)
    )


def _links() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Rankwatch")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["rankwatch"])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _alerts() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .enable(True)
        .datasource(DATASOURCE)
        .icon_color("red")
        .expr('ALERTS{alertname=~"Rankwatch.+", alertstate="firing", cluster=~"$cluster", run=~"$run"}')
    )
