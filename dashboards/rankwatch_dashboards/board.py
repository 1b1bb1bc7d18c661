"""What all dashboards share: variables, links, annotations, the first screen, and rows of details."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    GridPos,
    VariableRefresh,
    VariableSort,
)

from rankwatch_alerts import HARDWARE_ALERTS, RuleConfig
from rankwatch_alerts.rules import duration
from rankwatch_dashboards.drawing import build
from rankwatch_dashboards.firing import firing, named
from rankwatch_dashboards.panels import (
    CLUSTER,
    DATASOURCE,
    GREEN,
    ON_ITS_NODES,
    ORANGE,
    PURPLE,
    RED,
    RUN,
    Panel,
)

COLUMNS = 24
VERDICTS, VERDICT_HEIGHT = 6, 3
MAIN_HEIGHT = 9
"""Seven rows of a table: pages of several faults at once are all seen."""
VIEW_HEIGHT = 6
SCREEN_HEIGHT = VERDICT_HEIGHT + MAIN_HEIGHT + VIEW_HEIGHT
"""What a screen shows without scrolling."""


class Row(NamedTuple):
    """Details below the first screen, under the question that they answer."""

    title: str
    panels: tuple[Panel, ...]
    no_data: str = ""
    """What it means that nothing is drawn, of panels that do not say it themselves."""


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """The answer of a board, at the same places on each: verdicts, the main table, and three views of it."""

    verdicts: tuple[Panel, ...]
    """Six: what is wrong, who, since when, what it costs."""
    main: Panel
    views: tuple[Panel, Panel, Panel]

    def placed(self) -> Iterator[tuple[Panel, GridPos]]:
        """Its panels with their places; they fill the screen."""
        width = COLUMNS // VERDICTS
        for number, panel in enumerate(self.verdicts):
            yield panel, GridPos(x=number * width, y=0, w=width, h=VERDICT_HEIGHT)
        yield self.main, GridPos(x=0, y=VERDICT_HEIGHT, w=COLUMNS, h=MAIN_HEIGHT)
        width = COLUMNS // len(self.views)
        for number, panel in enumerate(self.views):
            yield panel, GridPos(x=number * width, y=VERDICT_HEIGHT + MAIN_HEIGHT, w=width, h=VIEW_HEIGHT)


def board(
    title: str,
    uid: str,
    description: str,
    *,
    variables: Iterable[dashboard.QueryVariable],
    events: str,
    screen: FirstScreen,
    rows: tuple[Row, ...],
    config: RuleConfig,
) -> dashboard.Dashboard:
    """The builder of a dashboard, its thresholds from the rules' own config.

    `events` are label matchers of the alerts, attempts, checkpoints and incidents that are drawn into its
    panels. The rows below the first screen are closed.
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
    )
    interval = config.scrape_interval_seconds
    for annotation in _events(events, duration(4 * interval)):
        made.annotation(annotation)
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        made.with_variable(variable)
    for panel, place in screen.placed():
        made.with_panel(build(replace(panel, span=place.w, height=place.h), interval).grid_pos(place))
    for top, row in enumerate(rows, start=SCREEN_HEIGHT):  # closed rows are one line high
        closed = dashboard.Row(row.title).grid_pos(GridPos(x=0, y=top, w=COLUMNS, h=1)).collapsed(True)
        panels = (_told(each, row.no_data) for each in row.panels)
        for panel, place in _flowing(panels, top + 1):
            closed.with_panel(build(panel, interval).grid_pos(place))
        made.with_row(closed)
    return made


def _told(panel: Panel, no_data: str) -> Panel:
    """The panel with what no data means: what it says itself, else what holds for its row."""
    if panel.no_data or not no_data:
        return panel
    none = "there is none, which is good, or "
    return replace(panel, no_data=none + no_data if panel.empty_when_healthy else no_data)


def _flowing(panels: Iterable[Panel], top: int) -> Iterator[tuple[Panel, GridPos]]:
    """From left to right, and into a new line where one is full."""
    left = height = 0
    for panel in panels:
        if left + panel.span > COLUMNS:
            left, top, height = 0, top + height, 0
        yield panel, GridPos(x=left, y=top, w=panel.span, h=panel.height)
        left, height = left + panel.span, max(height, panel.height)


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
    return (
        any_cluster("label_values(rankwatch_rank_info, cluster)"),
        chosen("run", "Run", 'label_values(rankwatch_rank_info{cluster=~"$cluster"}, run)'),
        several(chosen("rank", "Rank", f"label_values(rankwatch_rank_info{{{RUN}}}, rank)")),
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


def _events(events: str, window: str) -> Iterator[dashboard.AnnotationQuery]:
    """What happened to the runs or nodes with these labels. Checkpoints of many runs would hide the rest."""
    alerts = firing(events)
    if "$run" in events:
        alerts += f" or {firing(f'{CLUSTER}, {named(HARDWARE_ALERTS)}')} {ON_ITS_NODES}"
    text = "run {{run}} rank {{rank}} on {{node}}"
    yield _event("Alerts", RED, alerts, "{{alertname}} {{reason}}", text)
    started = f"max by (cluster, run) (changes(rankwatch_run_attempt{{{events}}}[{window}])) > 0"
    yield _event("Attempts", PURPLE, started, "New attempt", "run {{run}}")
    saved = f"max by (cluster, run) (changes(rankwatch_node_checkpoint_saved_step{{{events}}}[{window}])) > 0"
    yield _event("Checkpoints", GREEN, saved, "Checkpoint saved", "run {{run}}").enable("$run" in events)
    incidents = f"max by (cluster, run, kind) (rankwatch_incident_open{{{events}}}) > 0"
    yield _event("Incidents", ORANGE, incidents, "Incident: {{kind}}", "run {{run}}")


def _event(name: str, colour: str, expression: str, title: str, text: str) -> dashboard.AnnotationQuery:
    query = dashboard.AnnotationQuery().name(name).enable(True).datasource(DATASOURCE).icon_color(colour)
    return query.expr(expression).title_format(title).text_format(text)
