"""Lints of dashboards: our own checks, and those of grafana/dashboard-linter that fit."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import promql_parser

from rankwatch_alerts import ALERT_NAMES
from rankwatch_alerts.checks import Violation, check_expression
from rankwatch_alerts.promql import labels_of, parse, result_labels, selectors

LONGEST_UID = 40
FIRST_SCREEN = (
    *((4 * number, 0, 4, 3) for number in range(6)),
    (0, 3, 24, 9),
    *((8 * number, 12, 8, 6) for number in range(3)),
)
"""Places of the panels of a first screen: six verdicts, the main table, three views of it."""
_ALERT = re.compile(r"Rankwatch[A-Z]\w+")
_LINK = re.compile(r"\"/d/([^\"]+)\"")
_NOT_CLASSIC = ("elements", "layout", "__inputs", "__requires")
COLUMNS = 24
SHORTEST_DESCRIPTION = 40
_ANGULAR = frozenset({"graph", "singlestat", "table-old"})
_VARIABLE = "${datasource}"
_ON_TIME_RANGE_CHANGED = 2
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
_RATE_RANGE = re.compile(r"\b(?:irate|rate)\([^\[]*\[([^\]]*)\]")
_BOUNDED = ("topk", "bottomk")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_BUILT_IN = {"__rate_interval": "1m", "__interval": "15s", "__range": "1h"}


class Target(NamedTuple):
    """One query; `where` is uid, panel id and refId, the only key that is unique."""

    where: str
    panel: Mapping[str, Any]
    target: Mapping[str, Any]

    @property
    def expression(self) -> str:
        """The query as written in the dashboard."""
        return str(self.target["expr"])


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All panels, rows included, those inside collapsed rows too."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def drawn(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All panels that draw something."""
    return (each for each in panels(dashboard) if each["type"] != "row")


def targets(dashboard: Mapping[str, Any]) -> Iterator[Target]:
    """All queries of all panels."""
    for panel in drawn(dashboard):
        for target in panel.get("targets", ()):
            yield Target(f"{dashboard['uid']}/{panel['id']}/{target.get('refId', '?')}", panel, target)


def filled_in(expression: str, values: Mapping[str, str] | None = None) -> str:
    """The expression with variables replaced: by `values`, or by what matches everything."""
    known = {**_BUILT_IN, **(values or {})}
    return VARIABLE.sub(lambda found: known.get(found[1] or found[2], ".*"), expression)


def identity(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in uid, ids and the kind of JSON."""
    uid = dashboard.get("uid", "")
    if not 0 < len(uid) <= LONGEST_UID:
        yield Violation("identity", uid, f"uid is not 1 to {LONGEST_UID} characters long")
    for key in _NOT_CLASSIC:
        if key in dashboard:
            yield Violation("identity", uid, f"{key} is not part of Classic JSON")
    if dashboard.get("editable") is not False:
        yield Violation(
            "identity", uid, "the dashboard is editable; changes would be lost at the next import"
        )
    ids = Counter(each.get("id") for each in panels(dashboard))
    for number, times in ids.items():
        if not number or times > 1:
            yield Violation("identity", uid, f"panel id {number} occurs {times} times")
    places = Counter(each.where for each in targets(dashboard))
    for place, times in places.items():
        if times > 1 or place.endswith("?"):
            yield Violation("identity", place, "refId is missing or occurs twice in the panel")


def layout(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in places on the grid."""
    uid = dashboard["uid"]
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] < 0 or place["x"] + place["w"] > COLUMNS:
            yield Violation("layout", uid, f"{panel['title']} does not fit into {COLUMNS} columns")
    for one, other in combinations(dashboard["panels"], 2):
        if _overlap(one["gridPos"], other["gridPos"]):
            yield Violation("layout", uid, f"{one['title']} and {other['title']} overlap")


def closed_rows(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in places on the grid inside closed rows, which open right below their titles."""
    for row in dashboard["panels"]:
        inside = row.get("panels") or []
        for panel in inside:
            place = panel["gridPos"]
            if place["x"] + place["w"] > COLUMNS or place["y"] <= row["gridPos"]["y"]:
                yield Violation("closed-rows", dashboard["uid"], f"{panel['title']} lies outside of its row")
        for one, other in combinations(inside, 2):
            if _overlap(one["gridPos"], other["gridPos"]):
                message = f"{one['title']} and {other['title']} overlap"
                yield Violation("closed-rows", dashboard["uid"], message)


def first_screen(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations of the geometry that all boards share: a full screen of answers, then closed rows."""
    uid = dashboard["uid"]
    shown = tuple(
        tuple(each["gridPos"][name] for name in "xywh")
        for each in dashboard["panels"]
        if each["type"] != "row"
    )
    if shown != FIRST_SCREEN:
        yield Violation("first-screen", uid, "panels outside of rows are not at the places of a first screen")
    for row in dashboard["panels"]:
        if row["type"] == "row" and not (row.get("collapsed") and row.get("panels")):
            yield Violation("first-screen", uid, f"row {row['title']} is open or empty")
    for panel in drawn(dashboard):
        if "No data means: " not in panel["description"]:
            yield Violation("first-screen", uid, f"{panel['title']} does not say what no data means")
    seen_at_once = {each["id"] for each in dashboard["panels"] if each["type"] != "row"}
    for asked in targets(dashboard):
        if asked.panel["id"] in seen_at_once and not asked.target.get("instant"):
            yield from _reads_all_ranks(asked)


def _reads_all_ranks(asked: Target) -> Iterator[Violation]:
    """A series per rank or collector over time at each scrape: 4 million samples an hour of 16,000 ranks."""
    for selector in selectors(parse(filled_in(asked.expression))):
        many = {"rank", "collector"} & (labels_of(selector.metric) or frozenset())
        if many and not selector.metric.startswith("ALERTS") and asked.panel.get("interval") != "1m":
            yield Violation("first-screen", asked.where, f"{selector.metric} is read at each scrape")


def links(dashboard: Mapping[str, Any], boards: frozenset[str]) -> Iterator[Violation]:
    """Violations in links to other boards: they exist, and carry variables and the time shown."""
    for panel in drawn(dashboard):
        for url in _LINK.findall(json.dumps(panel)):
            where = f"{dashboard['uid']}/{panel['id']}"
            if url.split("?")[0] not in boards:
                yield Violation("links", where, f"the board {url.split('?')[0]} does not exist")
            if "${cluster:queryparam}" not in url and "${__all_variables}" not in url:
                yield Violation("links", where, f"{url} carries no cluster")
            if not url.endswith("&${__url_time_range}"):
                yield Violation("links", where, f"{url} does not keep the time shown")


def moments(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in drawings of the present: over a range they would show what is over."""
    for each in targets(dashboard):
        present = each.panel["type"] in ("stat", "table", "bargauge")
        if bool(each.target.get("instant")) != present:
            yield Violation("moments", each.where, f"a query of a {each.panel['type']} for the wrong time")


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


def panel_texts(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in what a panel tells its reader."""
    for panel in drawn(dashboard):
        where = f"{dashboard['uid']}/{panel['id']}"
        if panel["type"] in _ANGULAR:
            yield Violation("panel-texts", where, f"type {panel['type']} is gone since Grafana 12")
        for name in _ALERT.findall(f"{panel.get('title')} {panel.get('description')}"):
            if name not in ALERT_NAMES:
                yield Violation("panel-texts", where, f"{name} is no alert")
        if not panel.get("title"):
            yield Violation("panel-texts", where, "no title")
        if len(panel.get("description", "")) < SHORTEST_DESCRIPTION:
            yield Violation("panel-texts", where, "no description that says what is bad and what to do")
        if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
            yield Violation("panel-texts", where, "no unit")
        if not panel.get("targets") and panel["type"] != "alertlist":
            yield Violation("panel-texts", where, "no query")


def datasources(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in fixed or missing data sources."""
    for panel in drawn(dashboard):
        if panel.get("datasource", {}).get("uid") != _VARIABLE:
            yield Violation(
                "datasources", f"{dashboard['uid']}/{panel['id']}", "not the data source variable"
            )
    for each in targets(dashboard):
        if each.target.get("datasource", {}).get("uid") != _VARIABLE:
            yield Violation("datasources", each.where, "not the data source variable")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query" and variable.get("datasource", {}).get("uid") != _VARIABLE:
            yield Violation("datasources", variable["name"], "not the data source variable")


def variables(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in templating variables and their use."""
    declared = {each["name"]: each for each in dashboard["templating"]["list"]}
    if "datasource" not in declared:
        yield Violation("variables", dashboard["uid"], "no variable named datasource")
    for name, variable in declared.items():
        yield from _declaration(name, variable)
    for variable in declared.values():
        if variable["type"] == "query":
            yield from _choices(variable)
    for each in targets(dashboard):
        used = {found[1] or found[2] for found in VARIABLE.finditer(each.expression)}
        for name in sorted(used - declared.keys()):
            if not name.startswith("__"):
                yield Violation("variables", each.where, f"${name} is not declared")
        for label, operator, name in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"\$(\w+)"', each.expression):
            if operator in ("=", "!=") and declared.get(name, {}).get("includeAll"):
                yield Violation(
                    "variables", each.where, f"{label}{operator}${name} cannot match several values"
                )


def _choices(variable: Mapping[str, Any]) -> Iterator[Violation]:
    """Values come from label_values(selector, label) of a metric that has the label."""
    name, found = variable["name"], _LABEL_VALUES.fullmatch(variable["query"])
    if not found:
        yield Violation("variables", name, "the query is not label_values(selector, label)")
        return
    selector, label = filled_in(found[1]), found[2]
    yield from check_expression(name, selector)
    if label not in result_labels(parse(selector)):
        yield Violation("variables", name, f"{selector} has no label {label}")


def _declaration(name: str, variable: Mapping[str, Any]) -> Iterator[Violation]:
    if not variable.get("label"):
        yield Violation("variables", name, "no label")
    if variable["type"] == "query" and variable.get("refresh") != _ON_TIME_RANGE_CHANGED:
        yield Violation("variables", name, "does not reload when the time range changes")
    if variable.get("includeAll") and variable.get("allValue") not in (".+", ".*"):
        yield Violation("variables", name, "allValue is neither .+ nor .*: All would list every value")


def queries(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in the expressions."""
    for each in targets(dashboard):
        expression = filled_in(each.expression)
        faults = check_expression(each.where, expression)
        yield from faults
        for window in _RATE_RANGE.findall(each.expression):
            if window != "$__rate_interval":
                yield Violation("queries", each.where, f"rate over [{window}] instead of [$__rate_interval]")
        if any(fault.check == "parses" for fault in faults):
            continue
        for selector in selectors(parse(expression)):
            if "cluster" not in selector.matched:
                yield Violation("queries", each.where, f"{selector.metric} is not limited to $cluster")


def series_names(dashboard: Mapping[str, Any]) -> Iterator[Violation]:
    """Violations in legends and numbers of lines."""
    for each in targets(dashboard):
        legend = each.target.get("legendFormat", "")
        if not legend:
            yield Violation("series-names", each.where, "no legend")
        beside = each.panel["type"] == "stat"  # the next one names the node
        if "{{rank}}" in legend and "{{node}}" not in legend and not beside:
            yield Violation("series-names", each.where, "the legend names a rank without its node")
        tree = parse(filled_in(each.expression))
        many = result_labels(tree) & {"rank", "node"}
        bounded = isinstance(tree, promql_parser.AggregateExpr) and str(tree.op) in _BOUNDED
        if many and not bounded:
            yield Violation("series-names", each.where, "a line per rank or node without topk")


CHECKS: tuple[Callable[[Mapping[str, Any]], Iterator[Violation]], ...] = (
    identity,
    layout,
    closed_rows,
    moments,
    panel_texts,
    datasources,
    variables,
    queries,
    series_names,
)


def check_dashboard(dashboard: Mapping[str, Any]) -> list[Violation]:
    """Violations of all checks in one dashboard."""
    return [finding for check in CHECKS for finding in check(dashboard)]
