"""The boards: one YAML file for each, with PromQL as it runs, and what all of them share.

`${...}` is what stands elsewhere, in Jinja's language: settings of the rules (`${loss_deviation / 2}`),
label matchers (`${RUN}`), the `texts` of the file or of shared.yaml, and `${firing(RUN)}`, `${suspects(RUN)}`
and the like of the module `firing`. A panel has the fields of `Panel`; with one query, `query` and
`legend`. A panel of another file is shown by `same_as` and its title, with what differs; one that Python
makes, by `computed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml
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
from rankwatch_dashboards import panels, words
from rankwatch_dashboards.alert_table import READS, firing_alerts
from rankwatch_dashboards.drawing import build
from rankwatch_dashboards.firing import evidence, firing, named, selected, suspects
from rankwatch_dashboards.panels import (
    CLUSTER,
    DATASOURCE,
    GREEN,
    ON_ITS_NODES,
    ORANGE,
    PURPLE,
    RED,
    RUN,
    Column,
    Drawing,
    Panel,
    Query,
)

COLUMNS = 24
VERDICT_HEIGHT = 3
MAIN_HEIGHT = 9
"""Seven rows of a table: pages of several faults at once are all seen."""
VIEW_HEIGHT = 6
SCREEN_HEIGHT = VERDICT_HEIGHT + MAIN_HEIGHT + VIEW_HEIGHT
"""Height that a screen shows without scrolling."""


BOARDS = ("fleet", "on_call", "run_debug", "learning", "checkpoints_goodput", "hardware", "agents")
"""In the order of a reader who looks for what is wrong."""
_WHOLE = re.compile(r"\$\{([^{}]*)\}")
_COLOURS = {name: getattr(panels, name.upper()) for name in ("green", "yellow", "orange", "red", "purple")}
_MAPPINGS = {"none": panels.NONE, "severities": panels.SEVERITIES}
_LINKS = {
    "run": panels.TO_RUN,
    "rank": panels.TO_RANK,
    "checkpoints": panels.TO_CHECKPOINTS,
    "node": panels.TO_NODE,
    "gpu": panels.TO_GPU,
    "tracker": panels.TO_TRACKER,
}
_COMPUTED = {"firing_alerts": firing_alerts}

Document = Mapping[str, Any]


@cache
def document(name: str) -> Document:
    """Return a file of boards, or `shared`, as it is written."""
    found: Document = yaml.safe_load((Path(__file__).parent / "boards" / f"{name}.yaml").read_text())
    return found


def build_board(name: str, config: RuleConfig) -> dashboard.Dashboard:
    """Return the builder of a board, its thresholds those of the rules."""
    return _BoardFile(name, config).build()


class _BoardFile:
    """One file, with the names that its `${...}` may use."""

    def __init__(self, name: str, config: RuleConfig) -> None:
        self._document = document(name)
        self._config = config
        self._jinja = jinja2.Environment(
            variable_start_string="${",
            variable_end_string="}",
            block_start_string="<%",
            block_end_string="%>",
            comment_start_string="<#",
            comment_end_string="#>",
            undefined=jinja2.StrictUndefined,
            finalize=lambda value: f"{value:g}" if isinstance(value, float) else value,
            autoescape=False,  # PromQL and words, which no browser reads as HTML
        )
        names = ("CLUSTER", "RUN", "RANKS", "NODE", "GPU", "ON_ITS_NODES", "OURS")
        self._names = {
            **{each: getattr(config, each) for each in RuleConfig.__dataclass_fields__},
            **{each: getattr(panels, each) for each in names},
            "HARDWARE": named(HARDWARE_ALERTS),
            "READS": READS,
            **{each.__name__: each for each in (firing, selected, suspects, evidence, duration)},
        }
        for texts in (document("shared")["texts"], self._document.get("texts", {})):
            self._add_texts(texts)

    def _add_texts(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._names[name] = self._filled(text)

    def _filled(self, value: Any) -> Any:
        """Fill in what `${...}` stands for in texts; one that is nothing else is a value of its own type."""
        match value:
            case str() if whole := _WHOLE.fullmatch(value):
                return self._jinja.compile_expression(whole[1], undefined_to_none=False)(self._names)
            case str() if "${" in value:
                return self._jinja.from_string(value).render(self._names)
            case list():
                return [self._filled(each) for each in value]
            case dict():
                return {key: self._filled(each) for key, each in value.items()}
        return value

    def build(self) -> dashboard.Dashboard:
        """Return the builder. The rows below the first screen are closed."""
        written, interval = self._document, self._config.scrape_interval_seconds
        made = (
            dashboard.Dashboard(written["title"])
            .uid(written["uid"])
            .description(written["description"])
            .tags(["rankwatch"])
            .readonly()
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .time("now-1h", "now")
            .refresh("30s")
            .timezone("browser")
            .link(_links())
        )
        for annotation in _events(self._filled(written["events"]), duration(4 * interval)):
            made.annotation(annotation)
        made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        for variable in self._variables():
            made.with_variable(variable)
        for panel, place in self._first_screen():
            made.with_panel(build(replace(panel, span=place.w, height=place.h), interval).grid_pos(place))
        for top, row in enumerate(written["rows"], start=SCREEN_HEIGHT):  # closed rows are one line high
            closed = dashboard.Row(row["title"]).grid_pos(GridPos(x=0, y=top, w=COLUMNS, h=1)).collapsed(True)
            told = (_told(self._panel(each), row.get("no_data", "")) for each in row["panels"])
            for panel, place in _flowing(told, top + 1):
                closed.with_panel(build(panel, interval).grid_pos(place))
            made.with_row(closed)
        return made

    def _first_screen(self) -> Iterator[tuple[Panel, GridPos]]:
        """Yield its panels with their places, the same on each board; they fill the screen.

        Verdicts (what is wrong, who, since when, what it costs), the main table, and views of it.
        """
        screen, top = self._document["first_screen"], 0
        for listed, height in (
            (screen["verdicts"], VERDICT_HEIGHT),
            ([screen["main"]], MAIN_HEIGHT),
            (screen["views"], VIEW_HEIGHT),
        ):
            width = COLUMNS // len(listed)
            for number, written in enumerate(listed):
                yield self._panel(written), GridPos(x=number * width, y=top, w=width, h=height)
            top += height

    def _variables(self) -> Iterator[dashboard.QueryVariable]:
        if self._document["variables"] == "run and ranks":
            yield from variables_of_run()
            return
        for each in self._filled(self._document["variables"]):
            if "any_cluster" in each:
                yield any_cluster(each["any_cluster"])
            else:
                made = chosen(each["name"], each["label"], each["query"])
                yield several(made) if each.get("several") else made

    def _panel(self, written: Document) -> Panel:
        if same_as := written.get("same_as"):
            written = {**_found(same_as, written["title"]), **written}
            del written["same_as"]
        if computed := written.get("computed"):
            return _COMPUTED[computed](self._config, **self._filled(written["with"]))
        if texts := written.get("texts"):
            outer, self._names = self._names, dict(self._names)
            self._add_texts(texts)
            panel = self._panel({key: each for key, each in written.items() if key != "texts"})
            self._names = outer
            return panel
        fields = self._filled(dict(written))
        legend = fields.pop("legend", "")
        queries = fields.pop("queries", [fields.pop("query")] if "query" in fields else [])
        return Panel(**self._values(fields), queries=tuple(self._query(each, legend) for each in queries))

    def _query(self, written: str | Document, legend: str) -> Query:
        if isinstance(written, str):
            return Query(expression=written, legend=legend)
        steps = _steps(written.get("steps", ()))
        return Query(expression=written["query"], legend=written["legend"], steps=steps)

    def _values(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a panel or a column with names turned into what they stand for."""
        turned: dict[str, Callable[[Any], Any]] = {
            "drawing": Drawing,
            "steps": _steps,
            "threshold": float,
            "mappings": _mappings,
            "words": lambda name: getattr(words, name.upper()) if isinstance(name, str) else name,
            "sorted_by": tuple,
            "link": self._link,
            "links": lambda names: tuple(map(self._link, names)),
            "columns": lambda columns: tuple(Column(**self._values(each)) for each in columns),
        }
        return {key: turned[key](each) if key in turned else each for key, each in fields.items()}

    def _link(self, name: str) -> panels.Link:
        if name in _LINKS:
            return _LINKS[name]
        return panels.opens(document(name)["uid"], self._document["links"][name])


def _found(board_name: str, title: str) -> dict[str, Any]:
    """Return a panel of another file, as it is written there."""
    return next(
        dict(panel)
        for row in document(board_name)["rows"]
        for panel in row["panels"]
        if panel.get("title") == title
    )


def _steps(written: list[Any]) -> panels.Steps:
    return tuple((value, _COLOURS[colour]) for value, colour in written)


def _mappings(written: str | list[Any]) -> panels.Mappings:
    if isinstance(written, str):
        return _MAPPINGS[written]
    return tuple((value, text, _COLOURS.get(colour, "")) for value, text, colour in written)


def _told(panel: Panel, no_data: str) -> Panel:
    """Return the panel with what no data means: what it says itself, else what holds for its row."""
    if panel.no_data or not no_data:
        return panel
    none = "there is none, which is good, or "
    return replace(panel, no_data=none + no_data if panel.empty_when_healthy else no_data)


def _flowing(panels: Iterable[Panel], top: int) -> Iterator[tuple[Panel, GridPos]]:
    """Place panels from left to right, and into a new line where one is full."""
    left = height = 0
    for panel in panels:
        if left + panel.span > COLUMNS:
            left, top, height = 0, top + height, 0
        yield panel, GridPos(x=left, y=top, w=panel.span, h=panel.height)
        left, height = left + panel.span, max(height, panel.height)


def chosen(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Return a variable by the values of a label."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NUMERICAL_ASC)
    )


def several(variable: dashboard.QueryVariable) -> dashboard.QueryVariable:
    """Return the variable with a choice of several values, by default all."""
    return variable.multi(True).include_all(True).all_value(".+")


def any_cluster(query: str) -> dashboard.QueryVariable:
    """Return the variable `cluster`. Agents without that setting have no such label; .+ would not match."""
    return chosen("cluster", "Cluster", query).include_all(True).all_value(".*")


def variables_of_run() -> tuple[dashboard.QueryVariable, ...]:
    """Return the variables that choose a run and ranks of it."""
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
    """Yield what happened to these runs or nodes. Checkpoints of many runs would hide the rest."""
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
