"""What all dashboards share: variables, links, annotations, and rows of panels."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableRefresh,
    VariableSort,
)

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import DATASOURCE, Panel, build

Rows = tuple[tuple[str, Callable[[RuleConfig], tuple[Panel, ...]]], ...]
"""Title of a row, and its panels."""


def board(
    title: str,
    uid: str,
    description: str,
    *,
    variables: Iterable[dashboard.QueryVariable],
    alerts: str,
    rows: Rows,
    config: RuleConfig,
) -> dashboard.Dashboard:
    """The builder of a dashboard, its thresholds from the rules' own config.

    `alerts` are label matchers of the firing alerts that are drawn into its panels.
    """
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["rankwatch"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(_links())
        .annotation(_alerts(alerts))
    )
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        made.with_variable(variable)
    for heading, panels in rows:
        made.with_row(dashboard.Row(heading))
        for panel in panels(config):
            made.with_panel(build(panel))
    return made


def chosen(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable by the values of a label."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NUMERICAL_ASC)
    )


def several(variable: dashboard.QueryVariable) -> dashboard.QueryVariable:
    """The variable with a choice of several values, by default all."""
    return variable.multi(True).include_all(True).all_value(".+")


def any_cluster(query: str) -> dashboard.QueryVariable:
    """The variable `cluster`: agents without that setting have no such label, which .+ would not match."""
    return chosen("cluster", "Cluster", query).include_all(True).all_value(".*")


def variables_of_run() -> tuple[dashboard.QueryVariable, ...]:
    """A run and ranks of it."""
    run, rank = 'cluster=~"$cluster"', 'cluster=~"$cluster", run=~"$run"'
    return (
        any_cluster("label_values(rankwatch_rank_info, cluster)"),
        chosen("run", "Run", f"label_values(rankwatch_rank_info{{{run}}}, run)"),
        several(chosen("rank", "Rank", f"label_values(rankwatch_rank_info{{{rank}}}, rank)")),
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


def _alerts(matchers: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .enable(True)
        .datasource(DATASOURCE)
        .icon_color("red")
        .expr(f'ALERTS{{alertname=~"Rankwatch.+", alertstate="firing", {matchers}}}')
    )
