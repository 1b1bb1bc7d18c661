"""The run-debug dashboard: its rows in the order of triage, its variables, its annotations."""

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
from rankwatch_dashboards.run_debug import (
    checkpoints,
    collectives,
    learning,
    machines,
    progress,
    step_split,
    telemetry,
    who_is_slow,
    why_slow,
)

ROWS: tuple[tuple[str, Callable[[RuleConfig], tuple[Panel, ...]]], ...] = (
    ("Is it making progress?", lambda _: progress.PANELS),
    ("Where does the step go?", lambda _: step_split.PANELS),
    ("Who is slow?", who_is_slow.panels),
    ("No rank to blame?", why_slow.panels),
    ("Is it learning?", learning.panels),
    ("Could work be lost?", checkpoints.panels),
    ("Collectives", lambda _: collectives.PANELS),
    ("Nodes of the run", lambda _: machines.PANELS),
    ("Can this be believed?", lambda _: telemetry.PANELS),
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
        # Agents that are told no cluster have no such label, and .+ would not match that.
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
