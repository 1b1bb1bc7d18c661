"""From panels to Grafana's builders.

grafana-foundation-sdk draws no legend unless told to, gives queries no refId and no datasource, and
its builders are mutable; all of that is seen to here, in one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_uppercase

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from rankwatch_alerts.rules import duration
from rankwatch_dashboards.panels import DATASOURCE, GREEN, NOW, RED, Column, Drawing, Mappings, Panel, Steps
from rankwatch_dashboards.words import Words

Builder = (
    timeseries.Panel
    | stat.Panel
    | statetimeline.Panel
    | statushistory.Panel
    | bargauge.Panel
    | table.Panel
    | dashboard.Panel
)

TRANSPARENT = "transparent"
_MOST_CELLS = 100
"""Of a row over time: Grafana draws none where they are narrower than two pixels."""

_SECONDS_OF_ALL_RANKS = 60.0
"""Least interval. Reading 16,000 ranks at each scrape would be slow, and no wider screen shows it."""

_ROOM_FOR_VALUES = 8
"""Height from which on a legend is a table with values."""


def build(panel: Panel, interval_seconds: float) -> Builder:
    """Return a fresh builder of the panel with everything Grafana leaves out by default.

    `interval_seconds`: time between two scrapes, below which there is nothing to draw.
    """
    builder = _drawn(panel)
    builder.title(panel.title).description(_description(panel)).unit(panel.unit)
    builder.datasource(DATASOURCE)
    least = _SECONDS_OF_ALL_RANKS if panel.reads_all_ranks else 0.0
    builder.interval(duration(max(interval_seconds, least)))
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        asked = prometheus.Dataquery().expr(query.expression).legend_format(query.legend)
        asked.ref_id(letter).datasource(DATASOURCE)
        if panel.drawing in NOW:
            asked.instant()
        else:
            asked.range()
        if panel.drawing is Drawing.TABLE:
            asked.format(PromQueryFormat.TABLE)
        builder.with_target(asked)
    if panel.empty_when_healthy or panel.empty_text:
        builder.no_value(panel.empty_text or "none")
    if panel.mappings:
        builder.mappings([_mapping(panel.mappings)])
    if panel.decimals is not None:
        builder.decimals(panel.decimals)
    for query in panel.queries:
        if query.steps:
            below = TRANSPARENT if panel.drawing is Drawing.HISTORY else GREEN
            steps = _thresholds(query.steps, below).build()
            builder.override_by_name(query.legend, [models.DynamicConfigValue("thresholds", steps)])
    for name, words in panel.words.items():
        builder.override_by_name(name, [models.DynamicConfigValue("displayName", words)])
    if panel.links:
        builder.data_links([each.of_series() for each in panel.links])
    return builder


def _description(panel: Panel) -> str:
    return f"{panel.description} No data means: {panel.no_data}" if panel.no_data else panel.description


def _drawn(panel: Panel) -> Builder:
    match panel.drawing:
        case Drawing.NUMBER | Drawing.NAME | Drawing.NAMED_NUMBER:
            return _stat(panel)
        case Drawing.STATES:
            states = statetimeline.Panel().merge_values(True).legend(_hidden_legend())
            return states.thresholds(_thresholds(panel.steps))
        case Drawing.HISTORY:
            history = statushistory.Panel().show_value(common_models.VisibilityMode.NEVER)
            history.max_data_points(_MOST_CELLS)
            return history.legend(_hidden_legend()).thresholds(_thresholds(panel.steps, TRANSPARENT))
        case Drawing.BARS:
            return _bars(panel)
        case Drawing.TABLE:
            return _table(panel)
        case Drawing.ALERT_LIST | Drawing.ALERT_COUNT:
            return _alert_list(panel)
    return _lines(panel)


def _lines(panel: Panel) -> timeseries.Panel:
    builder = timeseries.Panel().legend(_legend(panel)).tooltip(_tooltip()).line_width(1)
    if panel.drawing is Drawing.STACKED:
        builder.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL)).fill_opacity(40)
    if panel.threshold is not None:
        builder.thresholds(_thresholds(((panel.threshold, RED),)))
        line = common_models.GraphThresholdsStyleMode.LINE
        builder.thresholds_style(common.GraphThresholdsStyleConfig().mode(line))
    return builder


def _stat(panel: Panel) -> stat.Panel:
    builder = stat.Panel().reduce_options(_last()).graph_mode(common_models.BigValueGraphMode.NONE)
    builder.thresholds(_thresholds(panel.steps))
    if panel.steps or panel.mappings or any(each.steps for each in panel.queries):
        builder.color_mode(common_models.BigValueColorMode.BACKGROUND)
    if panel.drawing is Drawing.NAME:
        builder.text_mode(common_models.BigValueTextMode.NAME)
    elif panel.drawing is Drawing.NAMED_NUMBER:
        builder.text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
    return builder


def _bars(panel: Panel) -> bargauge.Panel:
    builder = bargauge.Panel().reduce_options(_last()).thresholds(_thresholds(panel.steps))
    builder.orientation(common_models.VizOrientation.HORIZONTAL).show_unfilled(True)
    builder.display_mode(common_models.BarGaugeDisplayMode.BASIC)
    return builder if panel.least is None else builder.min(panel.least)


def _table(panel: Panel) -> table.Panel:
    builder = table.Panel().show_header(True)
    if len(panel.queries) > 1:
        builder.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    titles = {name: each.title for each in panel.columns for name in _fields(each)}
    linked = {label: label for each in panel.columns if each.link for label in each.link.labels}
    hidden = [label for label in linked if label not in titles]
    order = [*titles, *hidden]
    for name, options in (
        ("filterFieldsByName", {"include": {"names": order}}),
        (
            "organize",
            {
                "indexByName": {each: number for number, each in enumerate(order)},
                "renameByName": titles,
                "excludeByName": {},
            },
        ),
    ):
        builder.with_transformation(models.DataTransformerConfig(id_val=name, options=options))
    if panel.sorted_by:
        shown = {each.name: each.title for each in panel.columns}
        builder.sort_by(
            [
                common.TableSortByFieldState()
                .display_name(shown[each.removeprefix("-")])
                .desc(each.startswith("-"))
                for each in panel.sorted_by
            ]
        )
    for column in panel.columns:
        for each in _fields(column):
            builder.override_by_name(each, _properties(column))
    for label in hidden:
        builder.override_by_name(label, _HIDDEN)
    return builder


def _alert_list(panel: Panel) -> dashboard.Panel:
    """Return Grafana's own list of alerts, which the SDK has no builder for."""
    states = ("firing", "error", "recovering")
    options = {
        **_ALERT_LIST,
        "viewMode": "list" if panel.drawing is Drawing.ALERT_LIST else "stat",
        "alertInstanceLabelFilter": f"{{{panel.alerts}}}",
        "stateFilter": {each: each in states for each in (*states, "pending", "noData", "normal")},
        "statThresholds": _thresholds(panel.steps).build(),
        "statValueMappings": [_mapping(panel.mappings)] if panel.mappings else [],
    }
    return dashboard.Panel().type("alertlist").options(options)


_ALERT_LIST = {
    "alertName": "",
    "dashboardAlerts": False,
    "datasource": "",
    "groupBy": [],
    "groupMode": "default",
    "maxItems": 50,
    "showInstances": True,
    "sortOrder": 3,
    "statColorMode": "background",
}
"""Of all data sources and of Grafana itself, what fires before what only waits."""


_HIDDEN = [
    models.DynamicConfigValue("custom.hidden", True),
    models.DynamicConfigValue("custom.hideFrom", {"viz": True, "legend": False, "tooltip": False}),
]
"""For links, which read the columns of their row; the second one since Grafana 12.2."""


def _fields(column: Column) -> tuple[str, ...]:
    """Return names that Grafana gives the column: with one query that has series, its value is "Value"."""
    if column.name not in ascii_uppercase:
        return (column.name,)
    several = f"Value #{column.name}"
    return ("Value", several) if column.name == "A" else (several,)


def _properties(column: Column) -> list[models.DynamicConfigValue]:
    found = [models.DynamicConfigValue("unit", column.unit if column.name in ascii_uppercase else "string")]
    found.append(models.DynamicConfigValue("noValue", "-"))  # else the text of an empty panel
    if column.width:
        found.append(models.DynamicConfigValue("custom.width", column.width))
    if column.steps:
        found.append(models.DynamicConfigValue("thresholds", _thresholds(column.steps).build()))
    if column.decimals is not None:
        found.append(models.DynamicConfigValue("decimals", column.decimals))
    if column.mappings or column.words:
        plain = tuple((value, text, "") for value, text in column.words.items())
        found.append(models.DynamicConfigValue("mappings", [_mapping((*column.mappings, *plain))]))
    if column.patterns:
        found.append(models.DynamicConfigValue("mappings", list(_patterns(column.patterns))))
    if column.steps or column.mappings:
        coloured = {"type": "color-background", "mode": "basic"}
        found.append(models.DynamicConfigValue("custom.cellOptions", coloured))
    if column.link:
        found.append(models.DynamicConfigValue("links", [column.link.of_row().build()]))
    return found


def _mapping(mappings: Mappings) -> models.ValueMap:
    return models.ValueMap(
        options={
            value: models.ValueMappingResult(text=text or None, color=colour or None, index=number)
            for number, (value, text, colour) in enumerate(mappings)
        }
    )


def _patterns(words: Words) -> Iterator[models.RegexMap]:
    for number, (pattern, text) in enumerate(words.items()):
        result = models.ValueMappingResult(text=text, index=number)
        yield models.RegexMap(options=models.DashboardRegexMapOptions(pattern=pattern, result=result))


def _thresholds(steps: Steps, below: str = GREEN) -> dashboard.ThresholdsConfig:
    built = [models.Threshold(value=None, color=below)]
    built += [models.Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(built)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _hidden_legend() -> common.VizLegendOptions:
    return common.VizLegendOptions().show_legend(False)


def _legend(panel: Panel) -> common.VizLegendOptions:
    """Show all names in the little room of a first screen, with their values where there is more."""
    legend = common.VizLegendOptions().placement(common_models.LegendPlacement.BOTTOM).show_legend(True)
    if panel.height < _ROOM_FOR_VALUES:
        return legend.display_mode(common_models.LegendDisplayMode.LIST)
    return legend.display_mode(common_models.LegendDisplayMode.TABLE).calcs(["lastNotNull"])


def _tooltip() -> common.VizTooltipOptions:
    mode, order = common_models.TooltipDisplayMode.MULTI, common_models.SortOrder.DESCENDING
    return common.VizTooltipOptions().mode(mode).sort(order)
